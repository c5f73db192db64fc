"""What a run's journals say in plain numbers: who ran, how far, how many steps were skipped, what was lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ammeter.block import Floats, Mask, View, measured
from ammeter.seen import checkpoint, sentence
from ammeter.wire import Bye, Event, Hello, Lost, Schema

MAX_SEEN = 40
MAX_TIMES = 10_000

SAMPLED = (
    "samples",
    "tokens",
    "update_ratio",
    "lost_updates",
    "low_precision_share",
    "device_allocated_bytes",
    "host_rss_bytes",
)
"""Columns whose course the summary has beside the loss and the norm."""


@dataclass
class Span:
    """The finite numbers of one column: the first, the last, and how far they reached."""

    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    highest: float | None = None

    def add(self, column: Floats) -> None:
        finite = column[np.isfinite(column)]
        if not finite.size:
            return
        low, high = float(finite.min()), float(finite.max())
        self.first = float(finite[0]) if self.first is None else self.first
        self.last = float(finite[-1])
        self.lowest = low if self.lowest is None else min(low, self.lowest)
        self.highest = high if self.highest is None else max(high, self.highest)

    def as_json(self) -> dict[str, float | None]:
        return {"first": self.first, "last": self.last, "lowest": self.lowest, "highest": self.highest}


@dataclass(frozen=True)
class Saved:
    """A checkpoint: what none of its files holds, and what others can do to one of them."""

    path: str
    missing: set[str]
    exposed: set[str]


@dataclass
class Tally:
    """One stream in numbers; add() takes its views in order."""

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
    overhead: float = 0.0
    growths: int = 0
    backoffs: int = 0
    precision: str | None = None
    scale: Span = field(default_factory=Span)
    loss: Span = field(default_factory=Span)
    val_loss: Span = field(default_factory=Span)
    grad_norm: Span = field(default_factory=Span)
    lost: dict[str, dict[str, int]] = field(default_factory=dict)
    seen: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    """What probes told, in words: by event, line and sentence; the first MAX_SEEN."""
    checkpoints: dict[tuple[str, int], Saved] = field(default_factory=dict)
    """By folder and step: a checkpoint may be several files."""
    step_seconds: list[float] = field(default_factory=list)
    """Of at most the last MAX_TIMES steps."""
    sampled: dict[str, Span] = field(default_factory=lambda: {name: Span() for name in SAMPLED})

    def add(self, view: View) -> None:
        for _, frame in view.frames:
            self._frame(frame)
        if not len(view):
            return
        self.steps += len(view)
        self.last_step = int(view.steps[-1])
        self.last_step_time = int(view.times[-1])
        self._seen(int(view.times[0]), self.last_step_time)
        skipped = view.scalar("skipped") > 0
        self.skipped += int(skipped.sum())
        self.applied += int(((view.scalar("applied") > 0) & ~skipped).sum())
        self.nonfinite_steps += int(_nonfinite(view).sum())
        self.overhead += float(np.nansum(view.scalar("overhead_seconds")))
        for name in ("scale", "loss", "val_loss", "grad_norm"):
            getattr(self, name).add(view.scalar(name))
        for name, span in self.sampled.items():
            span.add(view.scalar(name))
        times = view.scalar("step_seconds")
        self.step_seconds = (self.step_seconds + times[np.isfinite(times)].tolist())[-MAX_TIMES:]
        if self.precision is None and view.schema.tensors:
            self.precision = "float32"

    @property
    def rank(self) -> int:
        return self.hello.rank if self.hello else 0

    @property
    def is_rank(self) -> bool:
        return self.hello is None or self.hello.role == "rank"

    @property
    def state(self) -> str:
        """running, ended, or lost: over without a goodbye."""
        if self.bye is not None:
            return "lost" if self.bye.reason == "lost" else "ended"
        return "running" if self.alive else "lost"

    def _frame(self, frame: Hello | Event | Lost | Bye) -> None:
        if isinstance(frame, Hello):
            self.hello = frame
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
        self.growths += event.name == "scaler.growth"
        self.backoffs += event.name == "scaler.backoff"
        if event.name == "autocast.entered" and event.data.get("grad") is True:
            self.precision = str(event.data.get("dtype") or self.precision)

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
            self.seen.setdefault((event.name, caller, said), told)

    def _seen(self, first: int, last: int) -> None:
        self.first_time = min(self.first_time or first, first)
        self.last_time = max(self.last_time, last)


def run_of(streams: Sequence[Tally]) -> dict[str, Any]:
    """Who ran, where, and how it ended, from the streams of one run."""
    ranks = [each for each in streams if each.is_rank] or list(streams)
    first = next((each.hello for each in ranks if each.hello), None) or Hello("", "", Schema())
    newest = max(ranks, key=lambda each: each.last_step, default=Tally(""))
    return {
        "id": first.run,
        "name": first.name,
        "project": first.project,
        "state": state_of(ranks),
        "started": instant(min((each.first_time for each in ranks), default=0)),
        "ended": instant(max((each.last_time for each in ranks), default=0)) if state_of(ranks) != "running" else None,
        "last_step": newest.last_step if newest.last_step >= 0 else None,
        "last_step_time": instant(newest.last_step_time),
        "goodbye": _goodbye(ranks),
        "world_size": first.world_size,
        "ranks_reporting": len({each.rank for each in ranks}),
        "precision": next((each.precision for each in ranks if each.precision), None),
        "torch_version": first.environment.get("torch"),
        "device_model": first.environment.get("device"),
        "host": first.host,
        "config": first.config,
        "tags": first.tags,
    }


def summary_of(streams: Sequence[Tally]) -> dict[str, Any]:
    """The run's numbers: rank 0's course, counts of the rank that has most, losses of all."""
    ranks = sorted((each for each in streams if each.is_rank), key=lambda each: each.rank) or [Tally("")]
    lead, seconds = ranks[0], max((each.last_time - each.first_time) / 1e9 for each in ranks)
    return {
        "steps": max(each.steps for each in ranks),
        "applied": max(each.applied for each in ranks),
        "skipped": max(each.skipped for each in ranks),
        "nonfinite_steps": max(each.nonfinite_steps for each in ranks),
        "scale": lead.scale.as_json() if lead.scale.first is not None else None,
        "scale_growths": max(each.growths for each in ranks),
        "scale_backoffs": max(each.backoffs for each in ranks),
        "loss": lead.loss.as_json(),
        "val_loss": lead.val_loss.as_json(),
        "grad_norm": lead.grad_norm.as_json(),
        "seconds": round(seconds, 3),
        "overhead_ratio": round(lead.overhead / seconds, 5) if seconds > 0 else None,
        "step_seconds": float(np.median(lead.step_seconds)) if lead.step_seconds else None,
        **{name: span.as_json() for name, span in lead.sampled.items()},
        "lost": lost_of(streams),
    }


def seen_in(streams: Sequence[Tally]) -> list[dict[str, Any]]:
    """What probes told, in words, by step; what several ranks or checkpoints have in common, once.

    Beside a checkpoint that is complete others are exports, and lack nothing.
    """
    every: dict[tuple[Any, ...], dict[str, Any]] = {}
    complete = any(not saved.missing for each in streams for saved in each.checkpoints.values())
    for each in streams:
        for told in each.seen.values():
            every.setdefault((told["event"], told["caller"], told["said"]), told)
        for (_, step), saved in each.checkpoints.items():
            if said := checkpoint(saved.path, () if complete else saved.missing, saved.exposed):
                told = {"event": "checkpoint.saved", "step": step, "rank": each.rank, "caller": None, "said": said}
                every.setdefault((frozenset(saved.missing), frozenset(saved.exposed)), told)
    return sorted(every.values(), key=lambda told: told["step"])[:MAX_SEEN]


def _words(said: Any) -> list[str]:
    return [str(each) for each in said] if isinstance(said, list) else [str(said)] if said else []


def lost_of(streams: Sequence[Tally]) -> dict[str, dict[str, int]]:
    """reason -> {steps, events} of records that are gone, over all streams."""
    total: dict[str, dict[str, int]] = {}
    for each in streams:
        for reason, counts in each.lost.items():
            so_far = total.setdefault(reason, {"steps": 0, "events": 0})
            so_far["steps"] += counts["steps"]
            so_far["events"] += counts["events"]
    return total


def state_of(ranks: Sequence[Tally]) -> str:
    """running while one process lives; lost when one of them went without a goodbye; else ended."""
    states = {each.state for each in ranks}
    return next((state for state in ("running", "lost") if state in states), "ended")


def instant(nanoseconds: int) -> str | None:
    """RFC 3339 in UTC, None for a time that is not known."""
    if not nanoseconds:
        return None
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _goodbye(ranks: Sequence[Tally]) -> str | None:
    """How the run ended, in the words of the rank that had most to say."""
    byes = [each.bye for each in ranks if each.bye is not None]
    worst = max(byes, key=lambda bye: ("closed", "exit", "signal", "exception", "lost").index(bye.reason), default=None)
    if worst is None:
        return None
    return f"{worst.reason}: {worst.message}" if worst.message else worst.reason


def _nonfinite(view: View) -> Mask:
    norms, elements = view.scalar("grad_norm"), view.scalar("grad_nonfinite")
    loss = view.scalar("loss")
    gradients = (measured(norms) & ~np.isfinite(norms) & ~(elements == 0)) | (elements > 0)
    found: Mask = gradients | (measured(loss) & ~np.isfinite(loss))
    return found
