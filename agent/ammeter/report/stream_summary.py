"""Summarizes the journal of one stream: counters, ranges of columns, and sentences on events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ammeter.counters import epoch_times
from ammeter.counters import stream as stream_counters
from ammeter.counters.events import Counters
from ammeter.counters.rows import count, nonfinite_gradients, nonfinite_losses, positive
from ammeter.report.column_summary import ColumnSummary
from ammeter.report.event_text import sentence, verdict_of
from ammeter.report.overhead import Overhead
from ammeter.verdicts.framework.rank_alignment import Standing, standing_of
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import LOSS, Bye, Event, Hello, Lost
from ammeter.wire.ranks import Life, is_sharded

MAX_SENTENCES = 40
MAX_STEP_TIMES = 10_000
MAX_LOSSES = 64
MAX_OUTCOME_CHARS = 20
MAX_REDUCTIONS = 8

SAMPLED = (
    "samples",
    "tokens",
    "update_ratio",
    "lost_updates",
    "low_precision_share",
    "device_allocated_bytes",
    "host_rss_bytes",
)
"""Columns whose series the summary contains besides loss and norm."""

SUMMARIZED = ("scale", "loss", "val_loss", "grad_norm", *SAMPLED)


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint, which may consist of several files of one folder.

    missing: state that none of its files contains. exposed: access of other users to one of them.
    """

    path: str
    missing: set[str]
    exposed: set[str]


@dataclass
class StreamSummary:
    """Summary of one stream. add() expects its views in order."""

    stream: str
    hello: Hello | None = None
    bye: Bye | None = None
    alive: bool = False
    counters: Counters = field(default_factory=dict)
    """The collector's counters; see ammeter/counters/stream.py."""
    nonfinite_steps: int = 0
    """Steps with NaN or Inf in the gradients or the loss."""
    precision: str | None = None
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    columns: dict[str, ColumnSummary] = field(default_factory=lambda: {name: ColumnSummary() for name in SUMMARIZED})
    losses: dict[str, ColumnSummary] = field(default_factory=dict)
    """By column, for runs with several losses or with only the argument of backward() known."""
    overhead: Overhead = field(default_factory=Overhead)
    last_step: int = -1
    first_time: int = 0
    last_time: int = 0
    last_step_time: int = 0
    step_seconds: list[float] = field(default_factory=list)
    """Times of the last MAX_STEP_TIMES steps at most."""
    followed: int = 0
    followable: int = 0
    """Steps whose order of calls was followed, and steps that record whether it was."""
    sharded: bool = False
    unscaled: bool = False
    """Whether scaler.step() came before any scale(), which raises."""
    state_at_first: bool | None = None
    """Whether the optimizers had state when the run began.

    Optimizers that have stepped have one. None if unknown.
    """
    sentences: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """Sentences on events, by event, program line and sentence; the first MAX_SENTENCES."""
    restores: Counter[str] = field(default_factory=Counter)
    """Number of checkpoints that were read back, by outcome."""
    reductions: list[dict[str, Any]] = field(default_factory=list)
    """Kinds of calls that reduce gradients over ranks, with most bytes first."""
    checkpoints: dict[tuple[str, int], SavedCheckpoint] = field(default_factory=dict)
    """By folder and step."""

    def add(self, view: View) -> None:
        self.counters = stream_counters.advance(self.counters, view)
        self.precision = stream_counters.precision(self.precision, view)
        for _, frame in view.frames:
            self._add_frame(frame)
        if len(view):
            self._add_rows(view)
        for _, frame in view.frames:
            if isinstance(frame, Event) and frame.name == "values.logged":
                self._add_logged(frame)

    @property
    def steps(self) -> int:
        return int(self.counters.get("steps", 0))

    @property
    def rank(self) -> int:
        return self.hello.rank if self.hello else 0

    @property
    def seconds_per_epoch(self) -> float | None:
        return epoch_times.seconds(self.counters)

    @property
    def is_rank(self) -> bool:
        return self.hello is None or self.hello.role == "rank"

    @property
    def life(self) -> Life:
        """The time span of this attempt.

        A process that died, or that a signal ended, ends at its last recorded step: another process writes the final
        record, and may do so after the next attempt has begun.
        """
        ended = None if self.state == "running" else self.last_step_time or self.first_time
        if self.bye is not None and self.state == "ended" and self.bye.reason != "signal":
            ended = self.bye.time
        return Life(self.stream, self.rank, self.hello.world_size if self.hello else 1, self.first_time, ended)

    @property
    def standing(self) -> Standing:
        """The rank's position. A rank that was ended from outside keeps its last position."""
        by_itself = self.bye is not None and self.bye.reason in ("closed", "exit")
        ended = None if self.state == "running" else self.last_time
        return standing_of(self.rank, self.last_step, self.last_step_time, ended, by_itself)

    @property
    def state(self) -> str:
        """running, ended, or lost: over without a final record."""
        if self.bye is not None:
            return "lost" if self.bye.reason == "lost" else "ended"
        return "running" if self.alive else "lost"

    def _add_rows(self, view: View) -> None:
        self.last_step = int(view.steps[-1])
        self.last_step_time = int(view.times[-1])
        self._extend(int(view.times[0]), self.last_step_time)
        self.nonfinite_steps += count(nonfinite_gradients(view) | nonfinite_losses(view))
        self.overhead.add(view)
        follows = view.scalar("calls_followed")
        self.followed += count(positive(follows))
        self.followable += count(measured(follows))
        for name, column in self.columns.items():
            column.add(view.scalar(name), view.steps)
        self._add_losses(view)
        times = view.scalar("step_seconds")
        self.step_seconds = (self.step_seconds + times[np.isfinite(times)].tolist())[-MAX_STEP_TIMES:]

    def _add_losses(self, view: View) -> None:
        for name in view.schema.losses:
            column = view.scalar(name)
            fits = name in self.losses or len(self.losses) < MAX_LOSSES
            if name != LOSS and fits and measured(column).any():
                self.losses.setdefault(name, ColumnSummary()).add(column, view.steps)

    def _add_frame(self, frame: Hello | Event | Lost | Bye) -> None:
        if isinstance(frame, Hello):
            self.hello = frame
            self.sharded = self.sharded or is_sharded(frame.schema)
            self._extend(frame.started, frame.started)
        elif isinstance(frame, Lost):
            self.lost = stream_counters.add_losses(self.lost, [frame])
        elif isinstance(frame, Bye):
            self.bye = frame
            self._extend(frame.time, frame.time)
        else:
            self._add_event(frame)

    def _add_event(self, event: Event) -> None:
        self._extend(event.time, event.time)
        self._add_sentence(event)
        if event.name == "checkpoint.saved":
            self._add_checkpoint(event)
        elif event.name == "checkpoint.verified":
            self.restores[str(event.data.get("outcome") or "skipped")[:MAX_OUTCOME_CHARS]] += 1
        elif event.name == "collectives.census":
            self._add_reductions(event)
        self.unscaled |= event.name == "usage.loss_not_scaled" and event.data.get("scale", 0) is None
        if event.name == "weights.census" and self.state_at_first is None:
            self.state_at_first = bool(event.data.get("state"))

    def _add_logged(self, event: Event) -> None:
        """Adds values of run.log for a step whose row was already written."""
        for name in ("loss", "val_loss"):
            if isinstance(value := event.data.get(name), int | float):
                self.columns[name].add(np.array([value], np.float32), np.array([event.step], np.int64))

    def _add_checkpoint(self, event: Event) -> None:
        path = str(event.data.get("path") or "")
        missing, exposed = (set(_strings(event.data.get(name))) for name in ("missing", "exposed"))
        key = (path.rpartition("/")[0] or path, event.step)
        if known := self.checkpoints.get(key):
            self.checkpoints[key] = SavedCheckpoint(key[0], known.missing & missing, known.exposed | exposed)
        elif len(self.checkpoints) < MAX_SENTENCES:
            self.checkpoints[key] = SavedCheckpoint(path, missing, exposed)

    def _add_reductions(self, event: Event) -> None:
        calls = event.data.get("calls")
        sums = [{name: call.get(name) for name in _CALL} for call in (calls or ()) if _is_reduction(call)]
        kinds = {(call["op"], call["dtype"], call["ranks"]): call for call in (*self.reductions, *sums)}
        self.reductions = sorted(kinds.values(), key=lambda call: -call["bytes"])[:MAX_REDUCTIONS]

    def _add_sentence(self, event: Event) -> None:
        text = sentence(event) if self._concerns(event) else None
        if text and len(self.sentences) < MAX_SENTENCES:
            caller = str(event.data.get("caller") or "")
            entry = {"event": event.name, "step": event.step, "rank": self.rank, "caller": caller or None, "said": text}
            self.sentences.setdefault((event.name, caller, text), entry | {"verdict": verdict_of(event)})

    def _concerns(self, event: Event) -> bool:
        """Whether an event matters on this machine: misaligned sizes cost time on a GPU only."""
        is_on_gpu = self.hello is not None and "cuda" in self.hello.environment
        return event.data.get("reason") != "misaligned" or is_on_gpu

    def _extend(self, first: int, last: int) -> None:
        self.first_time = min(self.first_time or first, first)
        self.last_time = max(self.last_time, last)


def _strings(value: Any) -> list[str]:
    return [str(member) for member in value] if isinstance(value, list) else [str(value)] if value else []


_CALL = ("op", "dtype", "ranks", "calls", "bytes")


def _is_reduction(call: dict[str, Any]) -> bool:
    """Whether a kind of call sums gradients over ranks."""
    return call["phase"] == "backward" and not call["op"].startswith("all_gather")
