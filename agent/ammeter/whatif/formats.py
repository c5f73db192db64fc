"""The floating-point formats of mixed precision, and the magnitudes at which rounding to them loses an element."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec


class Edge(NamedTuple):
    """A limit between two magnitudes. With `is_below`, the value itself is on the lower side."""

    value: float
    is_below: bool


class Format(msgspec.Struct, frozen=True):
    """A format with subnormal numbers, to which torch rounds to nearest, ties to even.

    Attributes:
        name: torch's name of the dtype.
        label: the name in texts.
        mantissa_bits: of a normal number, without the leading one.
        largest: the largest finite number.
        min_normal: the smallest normal number.
    """

    name: str
    label: str
    mantissa_bits: int
    largest: float
    min_normal: float

    @property
    def min_subnormal(self) -> float:
        return math.ldexp(self.min_normal, -self.mantissa_bits)

    @property
    def overflow(self) -> Edge:
        """Magnitudes above it do not round to a finite number: half a unit above the largest one.

        The tie rounds to the even neighbour, which is the largest number only in float8_e4m3fn.
        """
        unit = math.ldexp(1.0, math.frexp(self.largest)[1] - 1 - self.mantissa_bits)
        return Edge(self.largest + unit / 2, is_below=int(self.largest / unit) % 2 == 0)

    @property
    def normal(self) -> Edge:
        """Magnitudes above it round to a normal number; the tie does, too."""
        return Edge(self.min_normal - self.min_subnormal / 2, is_below=False)

    @property
    def flushed(self) -> Edge:
        """Magnitudes below it round to zero: half the smallest subnormal number, and the tie."""
        return Edge(self.min_subnormal / 2, is_below=True)


FORMATS: dict[str, Format] = {
    number_format.name: number_format
    for number_format in (
        Format("float8_e4m3fn", "FP8 e4m3fn", 3, 448.0, 2.0**-6),
        Format("float8_e5m2", "FP8 e5m2", 2, 57344.0, 2.0**-14),
        Format("float16", "float16", 10, 65504.0, 2.0**-14),
        Format("bfloat16", "bfloat16", 7, (2 - 2.0**-7) * 2.0**127, 2.0**-126),
    )
}
"""By name, the narrowest first. Of two formats of 8 bits, the first has more mantissa bits."""
