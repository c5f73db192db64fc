"""Faults to train with on purpose, one for each verdict that a CPU can show, in the families of the verdicts."""

from faults import (  # noqa: F401 - their faults enter the registry
    baseline,
    call_order,
    checkpoints,
    dynamics,
    evaluation,
    kernels,
    loss_scale,
    low_precision,
    nonfinite,
    processes,
)
from faults.inject import inject
from faults.registry import REGISTRY, Expected, Fault

__all__ = ["REGISTRY", "Expected", "Fault", "inject"]
