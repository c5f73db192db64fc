"""checkpoint-stale: a failure would lose too much work, because the last checkpoint is old."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from ammeter.verdicts.framework.finding import Finding, Verdict
from ammeter.verdicts.framework.lifecycle import Lifecycle, changed, lifecycle_fields
from ammeter.verdicts.framework.single_event import path_of
from ammeter.wire.columns import View
from ammeter.wire.frames import Event, Hello

FAILURE_HOURS = 8000.0
"""GPU hours per failure of a job: jobs of 1024 GPUs fail every 7.9 hours (Kokolis et al. 2025, Revisiting Reliability
in Large-Scale Machine Learning Research Clusters)."""

MAX_FAILURE_HOURS = 168.0
"""Upper bound of the hours between failures, a week: however reliable a single machine is, within a week there is an
update, a preemption or a reboot."""

STALE_FACTOR = 4.0
"""Multiple of the best interval after which a checkpoint is stale. The best interval is sqrt(2 x time to save x time
between failures) (Young 1974, Daly 2006). At four times it, the average cost is more than twice the minimum; at up to
twice, it is at most a quarter above the minimum."""

MIN_LIMIT_SECONDS = 3600.0
"""Lower bound of the limit: less than an hour of work does not justify a change."""

ASSUMED_SAVE_SECONDS = 60.0
"""Assumed seconds of a save if none was seen."""

MIN_SAVE_SECONDS = 1.0
"""Minimum seconds of a save. A save in the background seems to take no time, but it uses the disk."""

REPEAT_FACTOR = 2.0
"""The finding is updated with the new number when the time has doubled."""

NS_PER_SECOND = 1e9
"""Nanoseconds per second: times of frames are whole nanoseconds."""


class State(msgspec.Struct, frozen=True, array_like=True):
    opened: Lifecycle = Lifecycle()
    since: int = 0
    """Time of the last checkpoint, or of the first step, by the training host's clock."""
    saved: int = -1
    """Step of the last checkpoint; -1 if there was none."""
    path: str = ""
    save_seconds: float = ASSUMED_SAVE_SECONDS
    ranks: int = 1
    saves: bool = True
    """Whether this is the process that is expected to save: the first of the ranks."""
    begun: int = -1
    """Step of the first row."""
    seconds: float = 0.0
    """Seconds without a checkpoint, as reported in the finding."""

    @property
    def failure_seconds(self) -> float:
        """Seconds between two failures of a job of this size."""
        return 3600 * min(MAX_FAILURE_HOURS, FAILURE_HOURS / max(1, self.ranks))

    @property
    def best_seconds(self) -> float:
        """Interval between checkpoints with the lowest cost, in seconds."""
        return math.sqrt(2 * self.save_seconds * self.failure_seconds)

    @property
    def limit_seconds(self) -> float:
        return max(MIN_LIMIT_SECONDS, STALE_FACTOR * self.best_seconds)


def judge(state: State, view: View) -> tuple[State, Finding | None]:
    before = state
    for part in view.parts("hello", "checkpoint.saved"):
        if isinstance(part, View):
            state = _rows(state, part)
        elif isinstance(part, Hello):
            state = replace(state, ranks=part.world_size, saves=part.rank == 0 and part.role == "rank")
        elif isinstance(part, Event):
            state = _saved(state, part)
    return state, changed(_conclude, before, state)


def _saved(state: State, event: Event) -> State:
    """Stores a save that contains weights or an optimizer's state.

    checkpoint-incomplete judges the completeness of a checkpoint.
    """
    contents = event.data.get("contents")
    if not isinstance(contents, dict) or not (contents.get("weights") or contents.get("optimizer")):
        return state
    seconds = max(MIN_SAVE_SECONDS, float(event.data.get("seconds") or 0.0))
    path = path_of(event.data)
    return replace(
        state,
        since=max(state.since, event.time),
        saved=event.step,
        save_seconds=seconds,
        path=path,
        opened=state.opened.over(),
    )


def _rows(state: State, rows: View) -> State:
    if not state.saves:
        return state
    if state.begun < 0:
        state = replace(state, begun=int(rows.steps[0]), since=max(state.since, int(rows.times[0])))
    begin = 0
    while begin < len(rows):
        limit = REPEAT_FACTOR * state.seconds if state.opened.active else state.limit_seconds
        due = state.since + int(limit * NS_PER_SECOND)
        late = np.flatnonzero(rows.times[begin:] >= due)
        if not late.size:
            break
        begin += int(late[0])
        seconds = (int(rows.times[begin]) - state.since) / NS_PER_SECOND
        first = state.saved if state.saved >= 0 else state.begun
        state = replace(state, seconds=seconds, opened=state.opened.at(first, int(rows.steps[begin])))
    return replace(state, opened=state.opened.until(int(rows.steps[-1]))) if state.opened.active else state


def _conclude(state: State) -> Finding:
    return Finding(
        verdict=VERDICT.id,
        severity="ticket",
        title=f"No checkpoint for more than {_duration(state.seconds)}{_since(state)}",
        cause=_cause(state),
        fix=_fix(state),
        evidence=_evidence(state),
        **lifecycle_fields(state.opened),
    )


def _since(state: State) -> str:
    return f", since step {state.saved}" if state.saved >= 0 else ""


def _fix(state: State) -> str:
    often = (
        f"Save every {_duration(state.best_seconds)}, by the clock and not by epoch: float32 weights, optimizer,"
        " scaler, scheduler and step, in a new file that is renamed when it is complete."
    )
    if state.saved < 0:
        return often
    return (
        f"Check why no save followed that of step {state.saved}: a full disk, or a condition that is not met. {often}"
    )


def _cause(state: State) -> str:
    seen = state.saved >= 0
    folder = f" in {state.path.rpartition('/')[0]}" if "/" in state.path[1:] else ""
    last = f"The last one was saved at step {state.saved}{folder if state.path else ', in memory'}."
    size = "one process" if state.ranks == 1 else f"{state.ranks} processes"
    save = f"about {state.save_seconds:.3g} s per save" if seen else f"an assumed {state.save_seconds:.3g} s per save"
    return (
        f"No checkpoint was seen for {_duration(state.seconds)}, so a crash, a node failure or a preemption would"
        f" cost that much work. {last if seen else 'None was seen in this run.'} With {save}, and one failure every"
        f" {_duration(state.failure_seconds)}, as is assumed for {size}, a checkpoint every"
        f" {_duration(state.best_seconds)} costs least."
    )


def _evidence(state: State) -> dict[str, Any]:
    return {
        "seconds_without_checkpoint": round(state.seconds, 1),
        "best_interval_seconds": round(state.best_seconds, 1),
        "seconds_between_failures": round(state.failure_seconds, 1),
        "save_seconds": round(state.save_seconds, 3),
        "last_checkpoint": state.path,
        "last_saved_step": state.saved if state.saved >= 0 else None,
    }


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172800 else f"{seconds / 86400:.1f} days"


VERDICT = Verdict(
    id="checkpoint-stale",
    severity="ticket",
    title="No recent checkpoint",
    question="Is the last checkpoint too old, considering how often jobs of this size fail?",
    columns=(),
    events=("checkpoint.saved",),
    state=State,
    judge=judge,
)
