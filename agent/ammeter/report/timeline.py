"""Builds the timeline of a run and the rows around one step, for the post-mortem.

Reads the journal once more; postmortem.py renders the result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ammeter.report.event_text import checkpoint, sentence
from ammeter.verdicts.framework import wording
from ammeter.wire.columns import View, measured
from ammeter.wire.frames import IMPORTED, Bye, Event, Hello, Lost

NEAR_STEPS = 5
"""Number of rows kept before and after a step."""

EARLIER_ROWS = 3
"""Number of earlier rows with a norm that are kept.

Not every short step has a norm.
"""

NAMED_TENSORS = 3
"""Number of tensors that are named per row."""

RESTORED = {
    "optimizer.restored": "an optimizer's state was loaded",
    "scaler.restored": "a scaler's state was loaded",
    "scheduler.restored": "the state of a learning rate schedule was loaded",
    "model.restored": "weights were loaded into the model",
    "optimizer.discarded": "an optimizer that does not step had loaded its state",
    "optimizer.joined": "an optimizer that was built during the run is watched",
    "run.continued": "an earlier process had trained in this run",
}
_RECORDING = "recording began"


@dataclass(frozen=True)
class Entry:
    """One line of the timeline. time: nanoseconds by the training host's clock."""

    time: int
    step: int | None
    text: str


@dataclass
class ScaleChange:
    """One or more consecutive changes of the loss scale in the same direction."""

    first: int
    last: int
    before: float
    after: float
    times: int = 1

    @property
    def up(self) -> bool:
        return self.after > self.before


@dataclass(frozen=True)
class SavedFile:
    """A file of a checkpoint. missing: state that it lacks and a resume needs. faults: its faults as text."""

    step: int
    time: int
    path: str
    missing: tuple[str, ...]
    faults: str | None


@dataclass(frozen=True)
class StepRow:
    """The numbers of one step; None for a value that was not read.

    tensors: those with the largest norms. If some are not finite, `nonfinite` counts them, and tensors are the last of
    these in model order, which are nearest to the origin in backward.
    """

    step: int
    loss: float | None
    norm: float | None
    scale: float | None
    skipped: bool
    nonfinite: int
    tensors: tuple[tuple[str, float], ...]


@dataclass
class Timeline:
    """The timeline of a stream and its kept rows.

    rows: the rows around the requested step. earlier: the last rows before them with a norm. times: end times of the
    requested steps.
    """

    entries: list[Entry] = field(default_factory=list)
    scale_changes: list[ScaleChange] = field(default_factory=list)
    saves: list[SavedFile] = field(default_factory=list)
    rows: list[StepRow] = field(default_factory=list)
    earlier: list[StepRow] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    _scale: float = math.nan
    _streak: tuple[int, int, int] = (-1, 0, 0)
    """Consecutive skipped steps: the first step, their number, and the time of the first."""
    _has_bad_loss: bool = False

    def add_frame(self, frame: Hello | Event | Lost | Bye) -> None:
        if isinstance(frame, Hello):
            if not any(entry.text.startswith(_RECORDING) for entry in self.entries):
                place = f"rank {frame.rank} of {frame.world_size} on {frame.host}, process {frame.pid}"
                place = f"a history imported from {tool}" if (tool := frame.environment.get(IMPORTED)) else place
                self.entries.append(Entry(frame.started, None, f"{_RECORDING}: {place}"))
        elif isinstance(frame, Bye):
            self.end_streak()
            message = f": {frame.message}" if frame.message else ""
            text = f"the process ended ({frame.reason}){message}"
            self.entries.append(Entry(frame.time, max(0, frame.step), text))
        elif isinstance(frame, Event):
            event_text = self._text_of(frame)
            if event_text and not any(entry.text == event_text for entry in self.entries):
                self.entries.append(Entry(frame.time, frame.step, event_text))

    def add_rows(self, rows: View, timed: Collection[int], middle: int | None) -> None:
        self._add_first_bad_loss(rows)
        if middle is not None:
            self.earlier = [*self.earlier, *_with_norm(rows, middle - NEAR_STEPS)][-EARLIER_ROWS:]
        times = rows.times.tolist()
        for at, (step, (skipped, scale)) in enumerate(rows.records("skipped", "scale")):
            if step in timed:
                self.times[step] = times[at]
            self._add_outcome(step, times[at], skipped > 0)
            self._add_scale(step, scale)
            if middle is not None and abs(step - middle) <= NEAR_STEPS:
                self.rows.append(_row(rows, at, step, skipped > 0))

    def end_streak(self) -> None:
        """Adds the entry of consecutive skipped steps."""
        first, count, began = self._streak
        if count == 1:
            self.entries.append(Entry(began, first, "the step was skipped"))
        elif count:
            text = f"{count} steps in a row were skipped, {first} to {first + count - 1}"
            self.entries.append(Entry(began, first, text))
        self._streak = (-1, 0, 0)

    def _text_of(self, event: Event) -> str | None:
        path = str(event.data.get("path") or "")
        if event.name == "checkpoint.saved":
            missing = tuple(map(str, event.data.get("missing") or ()))
            faults = checkpoint(path, missing, event.data.get("exposed") or ())
            self.saves.append(SavedFile(event.step, event.time, path, missing, faults))
            return faults or f"checkpoint {path or 'in memory'} was saved"
        if event.name == "checkpoint.restored":
            return f"checkpoint {path or 'in memory'} was loaded"
        return RESTORED.get(event.name) or sentence(event)

    def _add_first_bad_loss(self, rows: View) -> None:
        losses = rows.loss()
        bad = np.flatnonzero(measured(losses) & ~np.isfinite(losses))
        if bad.size and not self._has_bad_loss:
            at, self._has_bad_loss = int(bad[0]), True
            text = f"the loss is {wording.number(float(losses[at]))}"
            self.entries.append(Entry(int(rows.times[at]), int(rows.steps[at]), text))

    def _add_outcome(self, step: int, time: int, skipped: bool) -> None:
        first, count, began = self._streak
        if skipped:
            self._streak = (first, count + 1, began) if count else (step, 1, time)
        else:
            self.end_streak()

    def _add_scale(self, step: int, scale: float) -> None:
        before, self._scale = self._scale, scale if math.isfinite(scale) else self._scale
        if not math.isfinite(before) or not math.isfinite(scale) or scale == before:
            return
        last = self.scale_changes[-1] if self.scale_changes else None
        if last is not None and last.up == (scale > before):
            last.last, last.after, last.times = step, scale, last.times + 1
        else:
            self.scale_changes.append(ScaleChange(step, step, before, scale))


def timeline_of(views: Iterable[View], timed: Collection[int], middle: int | None, *, rows: bool = True) -> Timeline:
    """Builds the timeline of a stream from its views.

    Args:
        timed: Steps whose end times are needed.
        middle: Step around which rows are kept.
        rows: Whether to include steps; with several ranks only the first stream needs them.
    """
    timeline = Timeline()
    for view in views:
        for part in view.parts(*_names_of_frames(view)):
            if not isinstance(part, View):
                timeline.add_frame(part)
            elif rows:
                timeline.add_rows(part, timed, middle)
    timeline.end_streak()
    return timeline


def _names_of_frames(view: View) -> set[str]:
    names = {frame.name if isinstance(frame, Event) else type(frame).__name__.lower() for _, frame in view.frames}
    return names or {"bye"}


def _with_norm(rows: View, before: int) -> Iterator[StepRow]:
    """Yields the last rows before a step whose norm was read."""
    read = np.flatnonzero(measured(rows.scalar("grad_norm")) & (rows.steps < before))
    for at in read[-EARLIER_ROWS:].tolist():
        yield _row(rows, at, int(rows.steps[at]), bool(rows.scalar("skipped")[at] > 0))


def _row(rows: View, at: int, step: int, skipped: bool) -> StepRow:
    column = np.ascontiguousarray(rows.stat("grad.norm")[:, at])
    known, norms = measured(column), column.astype(np.float64)
    bad = np.flatnonzero(known & ~np.isfinite(norms))
    largest = sorted(np.flatnonzero(known).tolist(), key=lambda index: -norms[index])
    chosen = bad[-NAMED_TENSORS:].tolist() if bad.size else largest[:NAMED_TENSORS]
    tensors = tuple((rows.schema.tensors[index].name, float(norms[index])) for index in chosen)
    loss, norm, scale = (_number(rows, name, at) for name in ("loss", "grad_norm", "scale"))
    return StepRow(step, loss, norm, scale, skipped, int(bad.size), tensors)


def _number(rows: View, name: str, at: int) -> float | None:
    return float(rows.scalar(name)[at]) if measured(rows.scalar(name)[at : at + 1])[0] else None
