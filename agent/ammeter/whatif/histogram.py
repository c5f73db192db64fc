"""One reading of a tensor's exponents, as an event contains it."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any

import msgspec

from ammeter.whatif.cells import CELLS, HIGHEST, LOWEST, PER_EXPONENT
from ammeter.whatif.formats import Edge
from ammeter.wire.decodable import decodable

MAX_COUNTS = (HIGHEST - LOWEST + 1) * PER_EXPONENT

Count = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]


class Histogram(msgspec.Struct, frozen=True, dict=True):
    """The elements that were read of one tensor in one step.

    Attributes:
        scale: the factor by which they were multiplied.
        lowest: the exponent of the first counts.
        counts: PER_EXPONENT numbers for each exponent.
        absmax: the largest finite magnitude, multiplied by the scale.
        elements: the number of elements of the tensor, of which some may not have been read.
    """

    step: int
    scale: float
    lowest: int
    counts: tuple[int, ...]
    zeros: int
    nonfinite: int
    absmax: float
    elements: int

    @property
    def nonzero(self) -> int:
        """Elements that are finite and not zero."""
        return self._sums[-1]

    @property
    def read(self) -> int:
        return self.nonzero + self.zeros + self.nonfinite

    def below(self, edge: Edge, scale: float) -> float:
        """Returns the number of nonzero elements below a limit, if they were multiplied by `scale`.

        A limit inside a cell (see cells.py) divides it as if the density of its elements over the logarithm of their
        size were a straight line, with the slope that the exponents beside it have.
        """
        value = edge.value * (self.scale / scale)
        if not 0 < value < math.inf:
            return 0.0 if value == 0 else float(self.nonzero)
        mantissa, exponent = math.frexp(value)
        inside = Edge(2 * mantissa, edge.is_below)
        cell = bisect_right(CELLS, inside) - 1
        place = (exponent - 1 - self.lowest) * PER_EXPONENT + cell
        if place < 0:
            return 0.0
        if place >= len(self.counts):
            return float(self.nonzero)
        if not self.counts[place] or CELLS[cell] == inside:
            return float(self._sums[place])
        return self._sums[place] + _part(cell, inside, self._slope(place // PER_EXPONENT)) * self.counts[place]

    def _slope(self, row: int) -> float:
        """Returns the relative change of the density from one end of an exponent to the other, halved."""
        before, here, after = (self._total(row + offset) for offset in (-1, 0, 1))
        return (after - before) / (4 * here)

    def _total(self, row: int) -> int:
        """Returns the elements of an exponent, by its place in the counts."""
        return sum(self.counts[row * PER_EXPONENT : (row + 1) * PER_EXPONENT]) if row >= 0 else 0

    @cached_property
    def _sums(self) -> list[int]:
        """Elements before each cell, then all."""
        return [0, *accumulate(self.counts)]


@decodable
class _Entry(msgspec.Struct):
    """A tensor in an event."""

    tensor: str
    elements: Count
    lowest: Annotated[int, msgspec.Meta(ge=LOWEST, le=HIGHEST)]
    counts: Annotated[list[Count], msgspec.Meta(max_length=MAX_COUNTS)]
    zeros: Count
    nonfinite: Count
    absmax: Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]


def histogram_of(step: int, scale: Any, data: Any) -> tuple[str, Histogram] | None:
    """Returns (tensor, histogram) of an entry of an event; None if it is malformed."""
    try:
        factor = msgspec.convert(scale, Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)])
        entry = msgspec.convert(data, _Entry)
    except msgspec.ValidationError:
        return None
    if len(entry.counts) % PER_EXPONENT:
        return None
    return entry.tensor, Histogram(
        step=step,
        scale=factor,
        lowest=entry.lowest,
        counts=tuple(entry.counts),
        zeros=entry.zeros,
        nonfinite=entry.nonfinite,
        absmax=entry.absmax,
        elements=entry.elements,
    )


def _part(cell: int, edge: Edge, slope: float) -> float:
    """Returns the part of a cell below a limit inside it."""
    low = CELLS[cell].value
    width = math.log2((CELLS[cell + 1].value if cell + 1 < PER_EXPONENT else 2.0) / low)
    part = math.log2(edge.value / low) / width
    tilt = max(-1.0, min(slope * width, 1.0))
    return part - tilt * part * (1 - part)
