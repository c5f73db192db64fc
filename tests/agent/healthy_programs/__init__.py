"""Programs as people write them, without a mistake in precision or in the order of calls."""

from tests.agent.healthy_programs import (
    adversarial,
    gradients,
    losses,
    models,
    optimizers,
    precisions,
    resets,
    scalers,
    schedules,
)
from tests.agent.healthy_programs.program import HEALTHY, Program

__all__ = [
    "HEALTHY",
    "Program",
    "adversarial",
    "gradients",
    "losses",
    "models",
    "optimizers",
    "precisions",
    "resets",
    "scalers",
    "schedules",
]
