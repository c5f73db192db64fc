"""Summarizes one column of a stream: its range, and its first and last value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np

from ammeter.wire.columns import Floats, Ints, measured


@dataclass
class ColumnSummary:
    """Summary of one column.

    Attributes:
        first, lowest, highest: Of the finite values.
        last: Last value, which may be NaN or Inf.
        last_step: Step of the last measured value.
        read: Number of steps with a measured value.
    """

    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    highest: float | None = None
    last_step: int | None = None
    read: int = 0

    def add(self, column: Floats, steps: Ints) -> None:
        rows = np.flatnonzero(measured(column))
        if not rows.size:
            return
        self.read += int(rows.size)
        if self.last_step is None or steps[rows[-1]] >= self.last_step:  # late values may be of an earlier step
            self.last, self.last_step = float(column[rows[-1]]), int(steps[rows[-1]])
        finite = column[np.isfinite(column)]
        if finite.size:
            self.first = float(finite[0]) if self.first is None else self.first
            self.lowest = _known(min, (self.lowest, float(finite.min())))
            self.highest = _known(max, (self.highest, float(finite.max())))

    def joined(self, later: ColumnSummary) -> ColumnSummary:
        """Returns the summary of this column and a later one."""
        newer = later if later.read else self
        return ColumnSummary(
            first=later.first if self.first is None else self.first,
            last=newer.last,
            lowest=_known(min, (self.lowest, later.lowest)),
            highest=_known(max, (self.highest, later.highest)),
            last_step=newer.last_step,
            read=self.read + later.read,
        )

    def as_json(self) -> dict[str, float | None]:
        return asdict(self)


def _known(extreme: Callable[[Iterable[float]], float], values: tuple[float | None, float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return extreme(known) if known else None
