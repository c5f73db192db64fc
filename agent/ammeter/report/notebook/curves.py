"""Curves of a run for a small picture: a bounded number of points, with the extremes of all steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ammeter.journal.find import streams_in, views
from ammeter.wire.columns import Floats, Ints, Mask, View, measured
from ammeter.wire.frames import LOSS, Event
from ammeter.wire.logged_values import logged_values

if TYPE_CHECKING:
    from ammeter.report.diagnosis import Report
    from ammeter.report.stream_summary import StreamSummary

SLOTS = 300
"""Points of a curve at most: about one for two pixels of the picture."""

DRAWN = {LOSS: "loss", "val_loss": "validation loss", "scale": "loss scale", "grad_norm": "gradient norm"}
"""Columns that are drawn if they were measured, with their titles."""

SKIPPED_TITLE = "skipped steps"


@dataclass
class Curve:
    """One column over steps, in SLOTS groups of neighbouring steps.

    Attributes:
        title: What a reader sees.
        first, last: The first and the last step of the run.
        low, high: Lowest and highest finite value of each group; NaN without one.
        bad: Whether a group has a value that is NaN or infinite; for skipped steps, a skipped one.
        count: Number of such values.
        newest: The finite value of the last step that has one.
    """

    title: str
    first: int
    last: int
    low: Floats = field(default_factory=lambda: np.full(SLOTS, np.nan, np.float32))
    high: Floats = field(default_factory=lambda: np.full(SLOTS, np.nan, np.float32))
    bad: Mask = field(default_factory=lambda: np.zeros(SLOTS, np.bool_))
    count: int = 0
    newest: float | None = None
    _newest_step: int = -1

    def add(self, steps: Ints, values: Floats) -> None:
        """Adds measured values."""
        slots = (steps - self.first) * SLOTS // (self.last - self.first + 1)
        finite = np.isfinite(values)
        np.fmin.at(self.low, slots[finite], values[finite])
        np.fmax.at(self.high, slots[finite], values[finite])
        self._mark(slots[~finite])
        if finite.any() and steps[finite][-1] >= self._newest_step:  # late values may be of an earlier step
            self.newest, self._newest_step = float(values[finite][-1]), int(steps[finite][-1])

    def add_skips(self, steps: Ints) -> None:
        """Adds skipped steps."""
        self._mark((steps - self.first) * SLOTS // (self.last - self.first + 1))

    def _mark(self, slots: Ints) -> None:
        self.bad[slots] = True
        self.count += len(slots)

    @property
    def has_line(self) -> bool:
        return bool(np.isfinite(self.low).any())


def curves_of(report: Report, path: Path) -> list[Curve]:
    """Returns the curves of the newest attempt of the run's lowest rank, for what was measured.

    Skipped steps are the last curve, if there are any.
    """
    stream = _newest(report.streams)
    if stream is None:
        return []
    folder = next(folder for folder in streams_in(path) if folder.name == stream.stream)
    first = _first_step(views(folder))
    make = partial(Curve, first=first, last=max(first, stream.last_step))
    curves = {name: make(title) for name, title in DRAWN.items()}
    skipped = make(SKIPPED_TITLE)
    for view in views(folder):
        _add(view, curves, skipped)
    drawn = [curve for curve in curves.values() if curve.has_line or curve.count]
    return [*drawn, skipped] if skipped.count else drawn


def _newest(streams: Iterable[StreamSummary]) -> StreamSummary | None:
    ranks = [stream for stream in streams if stream.is_rank and stream.steps]
    lowest = min((stream.rank for stream in ranks), default=0)
    attempts = [stream for stream in ranks if stream.rank == lowest]
    return max(attempts, key=lambda stream: stream.first_time, default=None)


def _first_step(sections: Iterable[View]) -> int:
    return next((int(view.steps[0]) for view in sections if len(view)), 0)


def _add(view: View, curves: dict[str, Curve], skipped: Curve) -> None:
    """Adds the rows of a view, up to the last step that the report knows, and values logged late."""
    known = (view.steps >= skipped.first) & (view.steps <= skipped.last)
    for name, curve in curves.items():
        values = view.loss() if name == LOSS else view.scalar(name)
        rows = known & measured(values)
        curve.add(view.steps[rows], values[rows])
    skipped.add_skips(view.steps[known & (view.scalar("skipped") > 0)])
    for _, frame in view.frames:
        if isinstance(frame, Event) and skipped.first <= frame.step <= skipped.last:
            for name, value in logged_values(frame).items():
                if name in curves:
                    curves[name].add(np.array([frame.step], np.int64), np.array([value], np.float32))
