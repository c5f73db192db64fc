"""not-reproducible: a run with the seed and settings of another one produced other numbers."""

from __future__ import annotations

from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison

ENOUGH = 10
"""Minimum number of common losses; with fewer, a run may not have begun."""


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    mine, theirs = pair.seeds
    alike = mine is not None and mine == theirs and pair.same_precision and not pair.differences
    if not alike or pair.common < ENOUGH or pair.parted is None:
        return state, None
    return state, _conclude(pair, *pair.parted)


def _conclude(pair: RunComparison, step: int, loss: float, other: float) -> Finding:
    until = "the losses that both have before it are equal to the bit" if step else "they differ from the first step on"
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"The run parts from its twin at step {step}",
        cause=f"The run has the seed ({pair.seeds[0]}) and the settings of {pair.baseline.name or 'its baseline'}, and"
        f" at step {step} its loss is {_exactly(loss)} against {_exactly(other)}; {until}. Something in it is left to"
        " chance, or was changed without a setting that says so.",
        fix=_at_first() if step == 0 else _later(),
        first_step=step,
        opened_step=max(step, ENOUGH - 1),
        last_step=max(step, pair.run.last_step, ENOUGH - 1),
        evidence={
            "seed": str(pair.seeds[0]),
            "step": step,
            "loss": _exactly(loss),
            "baseline_loss": _exactly(other),
            "baseline": pair.baseline.name,
        },
    )


def _exactly(loss: float) -> str:
    """Formats a loss with enough digits to distinguish neighbouring float32 numbers."""
    return f"{loss:.9g}"


def _at_first() -> str:
    return (
        "Set every generator before the model and the data are built: torch.manual_seed, random.seed,"
        " numpy.random.seed, and DataLoader(generator=..., worker_init_fn=...). Look for code and data that were"
        " changed without a setting that says so."
    )


def _later() -> str:
    return (
        "Call torch.use_deterministic_algorithms(True) and set CUBLAS_WORKSPACE_CONFIG=:4096:8 and"
        " torch.backends.cudnn.benchmark = False: the first raises where an operator adds up in any order. Seed the"
        " workers of the DataLoader and what augments the data, and keep OMP_NUM_THREADS the same."
    )


VERDICT = Verdict(
    id="not-reproducible",
    severity="ticket",
    title="A run that cannot be repeated",
    question="Did a run with the seed and the settings of another one come to other numbers?",
    columns=("loss",),
    events=("values.logged",),
    runs=judge,
)
