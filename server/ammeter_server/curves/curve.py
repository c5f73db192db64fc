"""A curve, and a query for curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ammeter.wire.columns import Floats, Ints
from ammeter_server.db.column_codec import BUCKET_VALUES


class Curve(NamedTuple):
    """The measurements of one name. Curves of one query with the same steps share arrays.

    complete: whether these are all measurements, so that there is none between two neighbours; else a selection.
    """

    steps: Ints
    times: Ints
    values: Floats
    complete: bool = True


@dataclass(frozen=True)
class CurveQuery:
    """A query of names between two steps, with at most `points` points per name.

    by_time: spread the points evenly over time.
    """

    names: Sequence[str]
    points: int
    first: int | None = None
    last: int | None = None
    by_time: bool = False

    @property
    def after(self) -> int:
        """The step before the first."""
        return (self.first or 0) - 1

    @property
    def coarse_from(self) -> int:
        """Measured values from which coarse levels alone provide at least half of the points."""
        return BUCKET_VALUES * self.points // 4

    def within(self, steps: Ints) -> slice:
        """Returns the rows between the steps."""
        end = len(steps) if self.last is None else int(np.searchsorted(steps, self.last, "right"))
        return slice(int(np.searchsorted(steps, self.after, "right")), end)
