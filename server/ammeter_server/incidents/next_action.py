"""The sentences about what to do with a run that has an incident: stop it or not, and what to continue from.

The fix of a finding says how to mend the cause. These sentences follow from what was recorded of the weights, the
checkpoints and the loss scale since the fault began.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ammeter.verdicts.framework import wording
from ammeter.verdicts.urgency import URGENCY, Urgency, When

WeightsState = Literal["poisoned", "buffers", "damaged", "doubtful", "safe", "finite", "unknown"]

BAD = ("poisoned", "damaged", "doubtful")
"""States of weights from which a run should not continue."""

OPENINGS: Mapping[When, str] = {"stop": "Stop the run", "soon": "Mend it soon", "later": "The run can go on"}

UNKNOWN = Urgency("soon", "its training is not as it should be")
"""Of a verdict that only another version of the collector knows."""

LOST = "run-lost"

MIN_SKIPPED = 10
"""Skipped steps in a row from which a run counts as one that makes no progress."""


@dataclass(frozen=True)
class Situation:
    """What is known of a run with an incident. Steps are those of the run.

    Attributes:
        is_over: Whether the incident has recovered.
        first_step: Where the fault began.
        good_checkpoint: Step of the newest checkpoint from before the fault.
        any_checkpoint: Whether a checkpoint of any step was recorded.
        skipped_in_a_row: Skipped steps up to the last one.
        scale: The latest loss scale; None without a scaler.
    """

    verdict: str
    is_running: bool
    is_over: bool
    first_step: int
    weights: WeightsState
    good_checkpoint: int | None
    any_checkpoint: bool
    skipped_in_a_row: int
    scale: float | None


def next_action(situation: Situation) -> str:
    """Returns what to do with the run now, in one to three sentences."""
    return " ".join(_sentences(situation))


def first_action(verdict: str) -> str:
    """Returns the first of these sentences, which needs no more than the verdict, for a run that goes on."""
    urgency = URGENCY.get(verdict, UNKNOWN)
    return f"{'Start it again' if verdict == LOST else OPENINGS[urgency.when]}: {urgency.harm}."


def _sentences(run: Situation) -> Iterator[str]:
    urgency = _urgency(run)
    if run.is_over and run.weights not in BAD:
        yield "Nothing to do for this run: it has recovered. The fix is for the next one."
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
    if run.is_running and known.when == "soon" and run.skipped_in_a_row >= MIN_SKIPPED:
        return known._replace(when="stop", harm=f"its last {run.skipped_in_a_row} steps were all skipped")
    return known


def _opening(run: Situation, urgency: Urgency) -> str:
    if run.is_running:
        return OPENINGS[urgency.when]
    if run.verdict == LOST:
        return "Start it again"
    return "No hurry" if urgency.when == "later" else "Mend it before the next run"


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
    if run.weights == "safe" and run.any_checkpoint:
        return f"Its weights are good: continue from its newest checkpoint{_scaler(run)}."
    if run.weights == "safe" and run.is_running:
        return f"Its weights are good: save a checkpoint first if the program can, and continue from it{_scaler(run)}."
    if run.good_checkpoint is not None:
        return f"Continue from the checkpoint of step {run.good_checkpoint}, from before the fault{_scaler(run)}."
    if run.any_checkpoint:
        return "No checkpoint from before the fault was recorded: read its newest one with ammeter checkpoint first."
    return "No checkpoint was recorded: use one of your own, or start over."


def _scaler(run: Situation) -> str:
    if run.scale is None or (math.isfinite(run.scale) and run.scale >= 1):
        return ""
    size = f"2^{round(math.log2(run.scale))}" if run.scale > 0 else wording.number(run.scale)
    return f", with a new GradScaler: the scale has fallen to {size}"
