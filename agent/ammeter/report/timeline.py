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
from ammeter.wire.frames import Bye, Event, Hello, Lost

NEAR = 5
"""Number of rows kept before and after a step."""

EARLIER = 3
"""Number of earlier rows with a norm that are kept.

Not every short step has a norm.
"""

TOP = 3
"""Number of tensors that are named per row."""

RESTORED = {"optimizer.restored": "an optimizer's state was loaded", "scaler.restored": "a scaler's state was loaded"}


@dataclass(frozen=True)
class Moment:
    """One line of the timeline. time: nanoseconds by the training host's clock."""

    time: int
    step: int | None
    said: str


@dataclass
class Move:
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
class Saved:
    """A checkpoint. missing: state that it lacks and a resume needs."""

    step: int
    time: int
    path: str
    missing: tuple[str, ...]
    said: str | None


@dataclass(frozen=True)
class Row:
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
class Chronicle:
    """The timeline of a stream and its kept rows.

    rows: the rows around the requested step. earlier: the last rows before them with a norm. times: end times of the
    requested steps.
    """

    moments: list[Moment] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    saves: list[Saved] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    earlier: list[Row] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    _scale: float = math.nan
    _streak: tuple[int, int, int] = (-1, 0, 0)
    """Consecutive skipped steps: the first step, their number, and the time of the first."""
    _bad: bool = False


def chronicle(views: Iterable[View], asked: Collection[int], middle: int | None, *, rows: bool = True) -> Chronicle:
    """Builds the timeline of a stream from its views.

    asked: steps whose end times are needed. middle: step around which rows are kept. rows: whether to include steps;
    with several ranks only the first stream needs them.
    """
    told = Chronicle()
    for view in views:
        for part in view.parts(*_frames_of(view)):
            if isinstance(part, View):
                if rows:
                    _rows(told, part, asked, middle)
            else:
                _frame(told, part)
    _end_streak(told)
    return told


def _frames_of(view: View) -> set[str]:
    return {each.name if isinstance(each, Event) else type(each).__name__.lower() for _, each in view.frames} or {"bye"}


def _frame(told: Chronicle, frame: Hello | Event | Lost | Bye) -> None:
    if isinstance(frame, Hello):
        if not any(each.said.startswith("watched from here") for each in told.moments):
            said = f"watched from here on: rank {frame.rank} of {frame.world_size} on {frame.host}, process {frame.pid}"
            told.moments.append(Moment(frame.started, None, said))
    elif isinstance(frame, Bye):
        _end_streak(told)
        because = f": {frame.message}" if frame.message else ""
        told.moments.append(Moment(frame.time, max(0, frame.step), f"the process ended ({frame.reason}){because}"))
    elif isinstance(frame, Event):
        happened = _said(told, frame)
        if happened and not any(each.said == happened for each in told.moments):
            told.moments.append(Moment(frame.time, frame.step, happened))


def _said(told: Chronicle, event: Event) -> str | None:
    path = str(event.data.get("path") or "")
    if event.name == "checkpoint.saved":
        missing = tuple(map(str, event.data.get("missing") or ()))
        lacks = checkpoint(path, missing, event.data.get("exposed") or ())
        told.saves.append(Saved(event.step, event.time, path, missing, lacks))
        return lacks or f"checkpoint {path or 'in memory'} was saved"
    if event.name == "checkpoint.restored":
        return f"checkpoint {path or 'in memory'} was loaded"
    return RESTORED.get(event.name) or sentence(event)


def _rows(told: Chronicle, rows: View, asked: Collection[int], middle: int | None) -> None:
    losses = rows.loss()
    bad = np.flatnonzero(measured(losses) & ~np.isfinite(losses))
    if bad.size and not told._bad:
        at, told._bad = int(bad[0]), True
        said = f"the loss is {wording.number(float(losses[at]))}"
        told.moments.append(Moment(int(rows.times[at]), int(rows.steps[at]), said))
    if middle is not None:
        told.earlier = [*told.earlier, *_with_norm(rows, middle - NEAR)][-EARLIER:]
    times = rows.times.tolist()
    for at, (step, (skipped, scale)) in enumerate(rows.records("skipped", "scale")):
        if step in asked:
            told.times[step] = times[at]
        _skip(told, step, times[at], skipped > 0)
        _move(told, step, scale)
        if middle is not None and abs(step - middle) <= NEAR:
            told.rows.append(_row(rows, at, step, skipped > 0))


def _with_norm(rows: View, before: int) -> Iterator[Row]:
    """Yields the last rows before a step whose norm was read."""
    read = np.flatnonzero(measured(rows.scalar("grad_norm")) & (rows.steps < before))
    for at in read[-EARLIER:].tolist():
        yield _row(rows, at, int(rows.steps[at]), bool(rows.scalar("skipped")[at] > 0))


def _row(rows: View, at: int, step: int, skipped: bool) -> Row:
    column = np.ascontiguousarray(rows.stat("grad.norm")[:, at])
    known, norms = measured(column), column.astype(np.float64)
    bad = np.flatnonzero(known & ~np.isfinite(norms))
    largest = sorted(np.flatnonzero(known).tolist(), key=lambda index: -norms[index])
    chosen = bad[-TOP:].tolist() if bad.size else largest[:TOP]
    tensors = tuple((rows.schema.tensors[index].name, float(norms[index])) for index in chosen)
    loss, norm, scale = (_number(rows, name, at) for name in ("loss", "grad_norm", "scale"))
    return Row(step, loss, norm, scale, skipped, int(bad.size), tensors)


def _number(rows: View, name: str, at: int) -> float | None:
    return float(rows.scalar(name)[at]) if measured(rows.scalar(name)[at : at + 1])[0] else None


def _skip(told: Chronicle, step: int, time: int, skipped: bool) -> None:
    first, count, began = told._streak
    if skipped:
        told._streak = (first, count + 1, began) if count else (step, 1, time)
    else:
        _end_streak(told)


def _end_streak(told: Chronicle) -> None:
    first, count, began = told._streak
    if count == 1:
        told.moments.append(Moment(began, first, "the step was skipped"))
    elif count:
        said = f"{count} steps in a row were skipped, {first} to {first + count - 1}"
        told.moments.append(Moment(began, first, said))
    told._streak = (-1, 0, 0)


def _move(told: Chronicle, step: int, scale: float) -> None:
    before, told._scale = told._scale, scale if math.isfinite(scale) else told._scale
    if not math.isfinite(before) or not math.isfinite(scale) or scale == before:
        return
    last = told.moves[-1] if told.moves else None
    if last is not None and last.up == (scale > before):
        last.last, last.after, last.times = step, scale, last.times + 1
    else:
        told.moves.append(Move(step, step, before, scale))
