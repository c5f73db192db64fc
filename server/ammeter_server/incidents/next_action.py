"""The sentences about what to do with a run that has an incident: stop it or not, and what to continue from.

The fix of a finding says how to mend the cause. These sentences follow from what was recorded of the weights, the
checkpoints and the loss scale since the fault began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ammeter.verdicts.urgency import URGENCY, Urgency, When

WeightsState = Literal["poisoned", "buffers", "damaged", "doubtful", "safe", "finite", "unknown"]

BAD = ("poisoned", "damaged", "doubtful")
"""States of weights from which a run should not continue."""

OPENINGS: Mapping[When, str] = {
    "stop": "Stop the run",
    "soon": "The run can go on, but mend it soon",
    "later": "No reason to stop the run",
}

UNKNOWN = Urgency("soon", "its training is not as it should be")
"""Of a verdict that only another version of the collector knows."""

LOST = "run-lost"
STALLED = "run-stalled"
UNCERTAIN = "No data arrive from the run: find out first whether it still lives, and do not start a second one before."

MIN_SKIPPED = 10
"""Skipped steps in a row from which a run counts as one that makes no progress."""


@dataclass(frozen=True)
class Situation:
    """What is known of a run with an incident. Steps are those of the run.

    Attributes:
        is_page: Whether the incident pages a person.
        is_over: Whether the incident has recovered.
        has_ended: Whether the end of its process is known; False if only its silence is.
        first_step: Where the fault began.
        good_checkpoint: Step of the newest checkpoint with good weights.
        any_checkpoint: Whether a checkpoint of any step was recorded.
        skipped_in_a_row: Skipped steps up to the last one.
        scale: The latest loss scale; None without a scaler.
    """

    verdict: str
    is_running: bool
    is_page: bool
    is_over: bool
    has_ended: bool
    first_step: int
    weights: WeightsState
    good_checkpoint: int | None
    any_checkpoint: bool
    skipped_in_a_row: int
    scale: float | None


def next_action(situation: Situation) -> str:
    """Returns what to do with the run now, in one to three sentences."""
    return " ".join(_sentences(situation))


def first_action(verdict: str, evidence: Mapping[str, Any]) -> str:
    """Returns the first of these sentences, which needs no more than the finding, for a run that goes on."""
    if verdict == LOST and not has_ended(evidence):
        return UNCERTAIN
    urgency = URGENCY.get(verdict, UNKNOWN)
    return f"{urgency.opening or OPENINGS[urgency.when]}: {urgency.harm}."


def has_ended(evidence: Mapping[str, Any]) -> bool:
    """Whether a finding on a lost run knows that its process has ended; False if it only knows its silence."""
    return evidence.get("cause") != "host"


def _sentences(run: Situation) -> Iterator[str]:
    urgency = _urgency(run)
    if run.is_over and run.weights not in BAD:
        yield from _recovered(run)
        return
    if run.verdict == LOST and not run.has_ended:
        yield UNCERTAIN
        return
    yield f"{_opening(run, urgency)}: {urgency.harm}."
    if urgency.then:
        yield urgency.then
    elif urgency.when == "later":
        return
    elif run.weights in BAD:
        yield _return(run)
    elif urgency.when == "stop":
        yield _resumption(run)


def _urgency(run: Situation) -> Urgency:
    known = URGENCY.get(run.verdict, UNKNOWN)
    if not run.is_running or known.when != "soon":
        return known
    if run.skipped_in_a_row >= MIN_SKIPPED:
        return known._replace(when="stop", harm=f"its last {run.skipped_in_a_row} steps were all skipped")
    return known._replace(when="stop") if run.is_page else known


def _opening(run: Situation, urgency: Urgency) -> str:
    if run.is_running or run.verdict == LOST:
        return urgency.opening or OPENINGS[urgency.when]
    return "No hurry" if urgency.when == "later" else "Mend it before the next run"


def _recovered(run: Situation) -> Iterator[str]:
    if _is_low(run.scale) and run.is_running:
        yield f"It has recovered, but small gradients are lost at its loss scale of {_size(run.scale)}: stop the run."
        yield _resumption(run)
    else:
        yield "Nothing to do for this run: it has recovered. The fix is for the next one."


def _return(run: Situation) -> str:
    if run.good_checkpoint is not None:
        return f"Its weights are no longer good: go back to the checkpoint of step {run.good_checkpoint}{_scaler(run)}."
    if run.first_step <= 0:
        return "Its weights were never good: start over."
    return (
        f"Its weights are no longer good, and no checkpoint from before step {run.first_step} was recorded: use one of"
        " your own, or start over."
    )


def _resumption(run: Situation) -> str:
    if run.weights == "safe" and run.good_checkpoint is not None:
        return f"Its weights are good: continue from the checkpoint of step {run.good_checkpoint}{_scaler(run)}."
    if run.weights == "safe" and run.is_running:
        if run.verdict == STALLED:
            return "Its weights are good, but no checkpoint was recorded: use one of your own, or start over."
        return (
            "Its weights are good: save a checkpoint before you stop it, if the program can, and continue from that one"
            f" once the cause is mended{_scaler(run)}."
        )
    if run.good_checkpoint is not None:
        return f"Continue from the checkpoint of step {run.good_checkpoint}, from before the fault{_scaler(run)}."
    if run.any_checkpoint:
        return "No checkpoint from before the fault was recorded: read its newest one with ammeter checkpoint first."
    if run.first_step <= 0:
        return "No checkpoint was recorded, and the fault was there from the first step on: start over."
    return f"No checkpoint was recorded: use one of your own from before step {run.first_step}, or start over."


def _scaler(run: Situation) -> str:
    if not _is_low(run.scale):
        return ""
    return ", with a new GradScaler" + ("" if run.is_over else f": the scale has fallen to {_size(run.scale)}")


def _is_low(scale: float | None) -> bool:
    return scale is not None and not (math.isfinite(scale) and scale >= 1)


def _size(scale: float | None) -> str:
    return f"2^{round(math.log2(scale))}" if scale and math.isfinite(scale) else f"{scale:g}"
