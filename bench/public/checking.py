"""Compares what a report says of a healthy program with what the program itself did."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from bench.public.program import Fault
from bench.public.runner import Outcome

LOSS_TOLERANCE = 1e-4
"""Relative difference of a loss: a report has float32."""

SPEED_TOLERANCE = 1.5
"""Ratio of two medians of the same step, in two runs on a machine with other work."""

HALF = frozenset(("float16", "bfloat16"))

SENSITIVE_ERROR = 0.01
"""Relative error of probabilities computed in half precision from which sensitive-op-in-half names them."""

PRECISIONS = {
    "fp32": ("float32", ()),
    "fp64": ("float64", ()),
    "bf16": ("bfloat16", ("bfloat16",)),
    "fp16": ("float16", ("float16",)),
}
"""Precision -> what a report calls it, and the dtypes of the autocast contexts."""


def changed(outcome: Outcome) -> list[str]:
    """What watching changed: of the exit code, the output and the weights."""
    return [part for part in ("code", "output", "weights") if getattr(outcome.watched, part) != _bare(outcome, part)]


def not_repeatable(outcome: Outcome) -> list[str]:
    """What differs between two runs without Ammeter."""
    return [part for part in ("output", "weights") if getattr(outcome.bare, part) != getattr(outcome.recorded, part)]


def wrong(outcome: Outcome) -> list[str]:
    """What the report says and the program did not do."""
    if outcome.report is None:
        return [] if says_nothing_watched(outcome) else ["no report"]
    summary, truth = outcome.report["summary"], outcome.truth
    return [*_steps(outcome, summary, truth), *_losses(summary, truth), *_precision(outcome)]


def says_nothing_watched(outcome: Outcome) -> bool:
    """Whether Ammeter states that it did not watch a program without an optimizer of torch."""
    return not outcome.program.optimizers and "nothing was watched" in outcome.watched.errors


def speed(outcome: Outcome) -> float | None:
    """Seconds per step in the report, as a ratio to those of the recorded run."""
    if outcome.report is None or not outcome.truth.get("step_seconds"):
        return None
    seconds = outcome.report["summary"].get("step_seconds")
    return seconds / outcome.truth["step_seconds"] if seconds else None


def first_of_fault(outcome: Outcome, fault: Fault) -> str:
    """The first verdict of the run with the fault that the healthy run does not have, '' for none."""
    healthy = {finding["verdict"] for finding in (outcome.report or {"findings": ()})["findings"]}
    return next((found["verdict"] for found in outcome.broken[fault] if found["verdict"] not in healthy), "")


def is_named(outcome: Outcome, fault: Fault) -> bool:
    """Whether the first verdict names the fault."""
    return first_of_fault(outcome, fault) in fault.verdicts


def unconfirmed(outcome: Outcome) -> list[str]:
    """The verdicts of a healthy program that the recorder does not confirm."""
    found = outcome.report["findings"] if outcome.report else []
    truth = outcome.truth
    confirmed = {
        "loss-in-half": not HALF.isdisjoint(truth.get("loss_dtypes", ())),
        "no-loss-scaling": "float16" in truth.get("dtypes", ()) and not truth.get("is_scaled", True),
        "sensitive-op-in-half": truth.get("softmax_error", 0.0) >= SENSITIVE_ERROR,
    }
    return [finding["verdict"] for finding in found if not confirmed.get(finding["verdict"])]


def _bare(outcome: Outcome, part: str) -> Any:
    """The same of a bare run; what is not repeatable proves nothing."""
    return getattr(outcome.watched if part in not_repeatable(outcome) else outcome.bare, part)


def _steps(outcome: Outcome, summary: dict[str, Any], truth: dict[str, Any]) -> Iterator[str]:
    done = truth["steps"] / outcome.program.optimizers if outcome.program.optimizers else len(_only(truth["losses"]))
    if summary["applied"] != done:
        yield f"{summary['applied']} applied steps, but there were {done:g}"
    if summary["skipped"] != truth.get("skipped", 0):
        yield f"{summary['skipped']} skipped steps, but there were {truth['skipped']}"


def _losses(summary: dict[str, Any], truth: dict[str, Any]) -> Iterator[str]:
    """The first and the last loss of the only place that computes one; of several places, of those that it names."""
    reported = {name: numbers for name, numbers in (summary.get("losses") or {}).items() if numbers["read"]}
    reported = reported or {"loss": summary["loss"]}
    for name, numbers in reported.items():
        place = name.partition("@")[2]
        known = truth["losses"].get(place) if place else _only(truth["losses"])
        if not known:
            yield f"a loss at {place}, which has none"
            continue
        for which, chunk in (("first", known[0]), ("last", known[-1])):
            value, mean = numbers[which], sum(chunk) / len(chunk)
            meant = (mean, sum(chunk), chunk[0])  # the first evaluation of a closure; a sum of parts of a mean
            if value is None or not any(_is_near(float(value), true) for true in meant):
                yield f"{which} loss{f' of {place}' if place else ''} {value}, but it was {mean:.6g}"


def _only(losses: dict[str, list[list[float]]]) -> list[list[float]]:
    return next(iter(losses.values()), [])


def _is_near(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=LOSS_TOLERANCE, abs_tol=1e-7)


def _precision(outcome: Outcome) -> Iterator[str]:
    assert outcome.report is not None
    name, dtypes = PRECISIONS[outcome.precision]
    if tuple(outcome.truth["dtypes"]) != dtypes:
        yield f"the program enables autocast for {outcome.truth['dtypes']}, not for {list(dtypes)}"
    if outcome.report["run"]["precision"] != name:
        yield f"precision {outcome.report['run']['precision']}, but it was {name}"
