"""Counts the journal of one stream: steps, skipped steps, losses, events and lost records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.report.event_text import sentence, verdict_of
from ammeter.verdicts.framework import epoch_times as epochs
from ammeter.verdicts.framework.rank_alignment import Standing, standing_of
from ammeter.wire.columns import Floats, Ints, Mask, View, measured
from ammeter.wire.frames import LOSS, Bye, Event, Hello, Lost
from ammeter.wire.ranks import Life, is_sharded

MAX_SEEN = 40
MAX_TIMES = 10_000
MAX_LOSSES = 64

START_STEPS = 64
START_SECONDS = 1.0
"""The first steps are read densely.

Calls are followed for 64 steps, and the reading budgets spend their credit.
"""

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


@dataclass
class Span:
    """Summary of one column: first finite value, range of finite values, and last value.

    last_step: step of the last measured value. read: number of steps with a measured value.
    """

    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    highest: float | None = None
    last_step: int | None = None
    read: int = 0

    def add(self, column: Floats, steps: Ints) -> None:
        there = np.flatnonzero(measured(column))
        if not there.size:
            return
        self.read += int(there.size)
        if self.last_step is None or steps[there[-1]] >= self.last_step:  # late values may be of an earlier step
            self.last, self.last_step = float(column[there[-1]]), int(steps[there[-1]])
        finite = column[np.isfinite(column)]
        if finite.size:
            low, high = float(finite.min()), float(finite.max())
            self.first = float(finite[0]) if self.first is None else self.first
            self.lowest = low if self.lowest is None else min(low, self.lowest)
            self.highest = high if self.highest is None else max(high, self.highest)

    def join(self, later: Span) -> Span:
        """Appends a later span to this one."""
        newer = later if later.read else self
        lows, highs = ([each for each in pair if each is not None] for pair in self._reach(later))
        return Span(
            first=later.first if self.first is None else self.first,
            last=newer.last,
            lowest=min(lows, default=None),
            highest=max(highs, default=None),
            last_step=newer.last_step,
            read=self.read + later.read,
        )

    def _reach(self, later: Span) -> tuple[tuple[float | None, ...], tuple[float | None, ...]]:
        return (self.lowest, later.lowest), (self.highest, later.highest)

    def as_json(self) -> dict[str, float | None]:
        return {
            "first": self.first,
            "last": self.last,
            "lowest": self.lowest,
            "highest": self.highest,
            "last_step": self.last_step,
            "read": self.read,
        }


@dataclass
class Cost:
    """Time that Ammeter used in one stream, in nanoseconds.

    The time is split into the start and the settled steps after it. The start ends after START_STEPS steps and
    START_SECONDS of training.
    """

    start_steps: int = 0
    start: int = 0
    settled_steps: int = 0
    settled: int = 0
    settled_of: int = 0
    _trained: int = 0

    def add(self, view: View) -> None:
        ours = _nanoseconds(view.scalar("overhead_seconds"))
        steps = _nanoseconds(view.scalar("step_seconds"))
        trained = self._trained + np.cumsum(steps)
        numbers = self.start_steps + self.settled_steps + np.arange(len(view))
        young = (numbers < START_STEPS) | (trained < START_SECONDS * 1e9)
        self.start_steps += int(young.sum())
        self.start += int(ours[young].sum())
        self.settled_steps += int((~young).sum())
        self.settled += int(ours[~young].sum())
        self.settled_of += int(steps[~young].sum())
        self._trained = int(trained[-1])


@dataclass(frozen=True)
class Saved:
    """A checkpoint.

    missing: state that none of its files contains. exposed: access of other users to one of them.
    """

    path: str
    missing: set[str]
    exposed: set[str]


@dataclass
class Tally:
    """Counts of one stream. add() expects its views in order."""

    stream: str
    hello: Hello | None = None
    bye: Bye | None = None
    alive: bool = False
    steps: int = 0
    last_step: int = -1
    first_time: int = 0
    last_time: int = 0
    last_step_time: int = 0
    applied: int = 0
    skipped: int = 0
    nonfinite_steps: int = 0
    cost: Cost = field(default_factory=Cost)
    followed: int = 0
    followable: int = 0
    """Steps whose order of calls was followed, and steps that record whether it was."""
    growths: int = 0
    backoffs: int = 0
    precision: str | None = None
    sharded: bool = False
    unscaled: bool = False
    """Whether scaler.step() came before any scale(), which raises."""
    state_at_first: bool | None = None
    """Whether the optimizers had state when the run began.

    Optimizers that have stepped have one. None if unknown.
    """
    scale: Span = field(default_factory=Span)
    loss: Span = field(default_factory=Span)
    losses: dict[str, Span] = field(default_factory=dict)
    """By column, for runs with several losses or with only the argument of backward() known."""
    val_loss: Span = field(default_factory=Span)
    grad_norm: Span = field(default_factory=Span)
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    seen: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """Sentences on events, by event, program line and sentence; the first MAX_SEEN."""
    restores: Counter[str] = field(default_factory=Counter)
    """Number of checkpoints that were read back, by outcome."""
    checkpoints: dict[tuple[str, int], Saved] = field(default_factory=dict)
    """By folder and step, because a checkpoint may consist of several files."""
    step_seconds: list[float] = field(default_factory=list)
    """Times of the last MAX_TIMES steps at most."""
    sums: dict[str, float] = field(default_factory=lambda: {"samples": 0.0, "step_seconds": 0.0})
    epochs: list[Any] | None = None
    """See epochs.with_epoch."""
    sampled: dict[str, Span] = field(default_factory=lambda: {name: Span() for name in SAMPLED})

    def add(self, view: View) -> None:
        for _, frame in view.frames:
            self._frame(frame)
        if len(view):
            self._rows(view)
        for _, frame in view.frames:
            if isinstance(frame, Event) and frame.name == "values.logged":
                self._logged(frame)

    def _rows(self, view: View) -> None:
        self.steps += len(view)
        self.last_step = int(view.steps[-1])
        self.last_step_time = int(view.times[-1])
        self._seen(int(view.times[0]), self.last_step_time)
        skipped = view.scalar("skipped") > 0
        self.skipped += int(skipped.sum())
        self.applied += int(((view.scalar("applied") > 0) & ~skipped).sum())
        self.nonfinite_steps += int(_nonfinite(view).sum())
        self.cost.add(view)
        follows = view.scalar("calls_followed")
        self.followed += int((follows > 0).sum())
        self.followable += int(measured(follows).sum())
        for name in ("scale", "loss", "val_loss", "grad_norm"):
            getattr(self, name).add(view.scalar(name), view.steps)
        for name, span in self.sampled.items():
            span.add(view.scalar(name), view.steps)
        for name in view.schema.losses:
            if (
                name != LOSS
                and (name in self.losses or len(self.losses) < MAX_LOSSES)
                and measured(column := view.scalar(name)).any()
            ):
                self.losses.setdefault(name, Span()).add(column, view.steps)
        for at in np.flatnonzero(np.isfinite(view.scalar("epoch"))).tolist():
            self._epoch(float(view.scalar("epoch")[at]), int(view.times[at]))
        for name in ("samples", "step_seconds"):
            column = view.scalar(name)
            self.sums[name] += float(column[np.isfinite(column)].sum(dtype=np.float64))
        times = view.scalar("step_seconds")
        self.step_seconds = (self.step_seconds + times[np.isfinite(times)].tolist())[-MAX_TIMES:]
        if self.precision is None and view.schema.tensors:
            self.precision = "float32"

    @property
    def rank(self) -> int:
        return self.hello.rank if self.hello else 0

    @property
    def seconds_per_epoch(self) -> float | None:
        said = epochs.from_config(self.hello.config, self.hello.world_size) if self.hello else {}
        return epochs.seconds({**said, **self.sums, "epochs": self.epochs, "steps": self.steps})

    def _epoch(self, epoch: float, time: int) -> None:
        self.epochs = epochs.with_epoch(self.epochs, epoch, time)

    @property
    def is_rank(self) -> bool:
        return self.hello is None or self.hello.role == "rank"

    @property
    def life(self) -> Life:
        """The time span of this attempt.

        A process that died ends at its last recorded step.
        """
        died = self.last_step_time or self.first_time
        ended = None if self.state == "running" else self.bye.time if self.bye and self.state == "ended" else died
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

    def _frame(self, frame: Hello | Event | Lost | Bye) -> None:
        if isinstance(frame, Hello):
            self.hello = frame
            self.sharded = self.sharded or is_sharded(frame.schema)
            self._seen(frame.started, frame.started)
        elif isinstance(frame, Lost):
            counts = self.lost.setdefault(frame.reason, {"steps": 0, "events": 0})
            counts["steps"] += frame.steps
            counts["events"] += frame.events
        elif isinstance(frame, Bye):
            self.bye = frame
            self._seen(frame.time, frame.time)
        else:
            self._event(frame)

    def _event(self, event: Event) -> None:
        self._seen(event.time, event.time)
        self._told(event)
        if event.name == "checkpoint.saved":
            self._saved(event)
        elif event.name == "checkpoint.verified":
            self.restores[str(event.data.get("outcome") or "skipped")[:20]] += 1
        self.growths += event.name == "scaler.growth"
        self.backoffs += event.name == "scaler.backoff"
        self.unscaled |= event.name == "usage.loss_not_scaled" and event.data.get("scale", 0) is None
        if event.name == "weights.census" and self.state_at_first is None:
            self.state_at_first = bool(event.data.get("state"))
        if event.name == "autocast.entered" and event.data.get("grad") is True:
            self.precision = str(event.data.get("dtype") or self.precision)

    def _logged(self, event: Event) -> None:
        """Adds values of run.log for a step whose row was already written."""
        for name in ("loss", "val_loss"):
            if isinstance(value := event.data.get(name), int | float):
                getattr(self, name).add(np.array([value], np.float32), np.array([event.step], np.int64))
        if isinstance(epoch := event.data.get("epoch"), int | float) and np.isfinite(epoch):
            self._epoch(float(epoch), event.time)

    def _saved(self, event: Event) -> None:
        data = event.data
        path = str(data.get("path") or "")
        missing, exposed = set(_words(data.get("missing"))), set(_words(data.get("exposed")))
        key = (path.rpartition("/")[0] or path, event.step)
        if key in self.checkpoints or len(self.checkpoints) < MAX_SEEN:
            known = self.checkpoints.get(key)
            both = Saved(key[0], known.missing & missing, known.exposed | exposed) if known else None
            self.checkpoints[key] = both or Saved(path, missing, exposed)

    def _told(self, event: Event) -> None:
        said = sentence(event)
        if said and len(self.seen) < MAX_SEEN:
            caller = str(event.data.get("caller") or "")
            told = {"event": event.name, "step": event.step, "rank": self.rank, "caller": caller or None, "said": said}
            told["verdict"] = verdict_of(event)
            self.seen.setdefault((event.name, caller, said), told)

    def _seen(self, first: int, last: int) -> None:
        self.first_time = min(self.first_time or first, first)
        self.last_time = max(self.last_time, last)


def _nanoseconds(seconds: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.int64]:
    """Converts to whole nanoseconds, so that sums do not depend on order.

    Unmeasured values become 0.
    """
    known = np.where(np.isfinite(seconds), np.clip(seconds, 0, 1e6), 0)
    return (known.astype(np.float64) * 1e9).astype(np.int64)


def _words(said: Any) -> list[str]:
    return [str(each) for each in said] if isinstance(said, list) else [str(said)] if said else []


def _nonfinite(view: View) -> Mask:
    norms, elements = view.scalar("grad_norm"), view.scalar("grad_nonfinite")
    loss = view.loss()
    gradients = (measured(norms) & ~np.isfinite(norms) & ~(elements == 0)) | (elements > 0)
    found: Mask = gradients | (measured(loss) & ~np.isfinite(loss))
    return found
