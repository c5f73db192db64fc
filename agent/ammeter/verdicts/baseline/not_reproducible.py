"""not-reproducible: a run with the seed and settings of another one produced other numbers."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison

MIN_COMMON_LOSSES = 10
"""Minimum number of common losses; with fewer, a run may not have begun."""


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    mine, theirs = pair.seeds
    alike = mine is not None and mine == theirs and pair.same_precision and not pair.differences
    if not alike or pair.common_losses < MIN_COMMON_LOSSES or pair.first_difference is None:
        return state, None
    return state, _conclude(pair, *pair.first_difference)


def _conclude(pair: RunComparison, step: int, loss: float, other: float) -> Finding:
    before = (
        "all earlier losses of both runs are equal to the bit" if step else "the losses differ from the first step on"
    )
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Same seed and settings, but another loss at step {step}",
        cause=f"The run has the seed ({pair.seeds[0]}) and the settings of {pair.baseline.name or 'its baseline'}, but"
        f" at step {step} its loss is {_exactly(loss)} instead of {_exactly(other)}; {before}. Either a part of the run"
        " is nondeterministic, or code or data changed in a way that no setting records.",
        fix=_at_first() if step == 0 else _later(),
        first_step=step,
        opened_step=max(step, MIN_COMMON_LOSSES - 1),
        last_step=max(step, pair.run.last_step, MIN_COMMON_LOSSES - 1),
        evidence=_evidence(pair, step, loss, other),
    )


def _evidence(pair: RunComparison, step: int, loss: float, other: float) -> dict[str, Any]:
    return {
        "seed": str(pair.seeds[0]),
        "step": step,
        "loss": _exactly(loss),
        "baseline_loss": _exactly(other),
        "baseline": pair.baseline.name,
    }


def _exactly(loss: float) -> str:
    """Formats a loss with enough digits to distinguish neighbouring float32 numbers."""
    return f"{loss:.9g}"


def _at_first() -> str:
    return (
        "Seed every random generator before you build the model and the data: torch.manual_seed(seed),"
        " random.seed(seed), numpy.random.seed(seed), and DataLoader(generator=..., worker_init_fn=...). If the losses"
        " still differ, look for changes of code or data that no setting records."
    )


def _later() -> str:
    return (
        "Call torch.use_deterministic_algorithms(True), which raises at operators without a deterministic"
        " implementation, and set CUBLAS_WORKSPACE_CONFIG=:4096:8 and torch.backends.cudnn.benchmark = False. Seed the"
        " DataLoader workers and the data augmentation, and use the same OMP_NUM_THREADS."
    )


VERDICT = Verdict(
    id="not-reproducible",
    severity="ticket",
    title="Run not reproducible",
    question="Does the run have another loss than its baseline, although seed and settings are the same?",
    columns=("loss",),
    events=("values.logged",),
    runs=judge,
)
