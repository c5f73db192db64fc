"""not-reproducible: a run with the seed and settings of another one produced other numbers."""

from __future__ import annotations

from typing import Any

from ammeter.verdicts.framework import wording
from ammeter.verdicts.framework.finding import Finding, Nothing, Verdict
from ammeter.verdicts.framework.run_comparison import RunComparison

MIN_COMMON_LOSSES = 10
"""Minimum number of common losses; with fewer, a run may not have begun."""

MAX_ROUNDING = 1e-5
"""Relative difference of two losses up to which it is of the size of rounding: a hundred units in the last place."""


def judge(state: Nothing, pair: RunComparison) -> tuple[Nothing, Finding | None]:
    mine, theirs = pair.seeds
    alike = mine is not None and mine == theirs and pair.same_precision and not pair.differences
    if not alike or pair.common_losses < MIN_COMMON_LOSSES or pair.first_difference is None:
        return state, None
    return state, _conclude(pair, *pair.first_difference)


def _conclude(pair: RunComparison, step: int, loss: float, other: float) -> Finding:
    is_rounding = step > 0 and abs(loss - other) <= MAX_ROUNDING * abs(other)
    before = (
        "all earlier losses of both runs are equal to the bit" if step else "the losses differ from the first step on"
    )
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"Same seed and settings, but another loss at step {step}",
        cause=f"The run has the seed ({pair.seeds[0]}) and the settings of {wording.baseline(pair.baseline.name)}, but"
        f" at step {step} its loss is {_exactly(loss)} instead of {_exactly(other)}; {before}."
        f" {_reason(pair, is_rounding)}",
        fix=_at_first() if step == 0 else _later(pair, step, is_rounding),
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


def _reason(pair: RunComparison, is_rounding: bool) -> str:
    commits = [history.environment.get("git_commit") for history in (pair.run, pair.baseline)]
    changed = "data" if commits[0] and commits[0] == commits[1] else "code or data"
    if is_rounding:
        return (
            "A difference of this size is one of rounding, as from additions in another order; a small change of"
            f" {changed} that no setting records is possible, too."
        )
    return f"Either a part of the run is nondeterministic, or {changed} changed in a way that no setting records."


def _later(pair: RunComparison, step: int, is_rounding: bool) -> str:
    environment = pair.run.environment
    calls = "torch.use_deterministic_algorithms(True)"
    if "cuda" in environment or "device" not in environment:
        calls += ", CUBLAS_WORKSPACE_CONFIG=:4096:8 and torch.backends.cudnn.benchmark = False"
    if "threads" not in environment:
        calls += " and the same OMP_NUM_THREADS"
    exact = f"use {calls} in both runs: operators without a deterministic implementation then raise"
    data = f"compare the batches of both runs up to step {step}: seed the DataLoader workers and the data augmentation"
    first, then = (exact, data) if is_rounding else (data, exact)
    return f"{wording.sentence(first)}. Then {then}."


VERDICT = Verdict(
    id="not-reproducible",
    severity="ticket",
    title="Run not reproducible",
    question="Does the run have another loss than its baseline, although seed and settings are the same?",
    columns=("loss",),
    events=("values.logged",),
    runs=judge,
)
