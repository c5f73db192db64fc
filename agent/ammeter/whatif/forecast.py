"""Shares of a tensor's elements that a format loses at a scale, and the format that would suffice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ammeter.whatif.formats import FORMATS, Format
from ammeter.whatif.histogram import Histogram

MAX_LOST_SHARE = 0.01
"""Share of nonzero elements that a tensor may lose. Healthy float16 runs lose less than 1 %, and their validation loss
is unharmed; see gradient-underflow."""

RESERVE_BITS = 1
"""Powers of two that the best scale leaves free: elements may double until the scale is adapted. Recipes that adapt the
scale of each tensor from the largest recent element leave none or few, such as Transformer Engine's DelayedScaling."""

MAX_SCALE_EXPONENT = 126
"""Scales are normal float32 numbers, and so are their reciprocals."""

MAX_MARGIN = 0.02
"""Uncertainty of a share from which on a sample does not suffice for a recommendation."""


@dataclass(frozen=True)
class Shares:
    """Shares of the nonzero finite elements.

    Attributes:
        overflow: they would become infinite, NaN or the largest number.
        subnormal: they would keep fewer bits than others.
        flushed: they would become zero.
        margin: two standard errors of the largest of the shares, 0 if all elements were read.
    """

    overflow: float
    subnormal: float
    flushed: float
    margin: float

    @property
    def lost(self) -> float:
        return self.overflow + self.flushed


@dataclass(frozen=True)
class Forecast:
    """A tensor in one format.

    Attributes:
        scale: the best power of two.
        fits: whether the range of the format suffices; None if too few elements were read.
    """

    format: str
    scale: float
    shares: Shares
    fits: bool | None


def shares(readings: Sequence[Histogram], target: Format, scale: float) -> Shares | None:
    """Returns the shares over all readings; None if they have no nonzero element.

    scale: the factor by which the unscaled elements are multiplied.
    """
    nonzero = sum(reading.nonzero for reading in readings)
    if not nonzero:
        return None
    flushed, subnormal, finite = (
        sum(reading.below(edge, scale) for reading in readings) / nonzero
        for edge in (target.flushed, target.normal, target.overflow)
    )
    found = (1 - finite, subnormal - flushed, flushed)
    return Shares(*found, margin=_margin(readings, nonzero, found))


def best_scale(readings: Sequence[Histogram], target: Format) -> float | None:
    """Returns the largest power of two at which the largest element, doubled, does not overflow.

    A larger scale loses fewer small elements. If there are none to lose, it is 1: the format needs no scale.
    """
    largest = max((reading.absmax / reading.scale for reading in readings), default=0.0)
    if not 0 < largest < math.inf:
        return None
    exponent = math.floor(math.log2(target.overflow.value) - math.log2(largest)) - RESERVE_BITS
    scale = math.ldexp(1.0, max(-MAX_SCALE_EXPONENT, min(exponent, MAX_SCALE_EXPONENT)))
    unscaled = shares(readings, target, 1.0) if scale > 1 else None
    return 1.0 if unscaled and unscaled.lost == unscaled.subnormal == 0 else scale


def forecasts(readings: Sequence[Histogram]) -> list[Forecast]:
    """Returns each format at its best scale, the narrowest first; nothing without a nonzero element."""
    found = []
    for target in FORMATS.values():
        scale = best_scale(readings, target)
        result = shares(readings, target, scale) if scale else None
        if scale and result:
            found.append(Forecast(target.name, scale, result, _fits(result)))
    return found


def recommended(found: Sequence[Forecast]) -> Forecast | None:
    """Returns the narrowest format whose range suffices.

    None if there is none, or too few elements were read to tell whether a narrower one suffices.
    """
    for forecast in found:
        if forecast.fits is not False:
            return forecast if forecast.fits else None
    return None


def _fits(result: Shares) -> bool | None:
    if abs(result.lost - MAX_LOST_SHARE) <= result.margin and result.margin > MAX_MARGIN:
        return None
    return result.lost <= MAX_LOST_SHARE


def _margin(readings: Sequence[Histogram], nonzero: int, found: Sequence[float]) -> float:
    """Two standard errors; with shares near 0 the rule of three. Smaller, the more of a tensor was read."""
    read, elements = (sum(getattr(reading, name) for reading in readings) for name in ("read", "elements"))
    unread = max(0.0, 1 - read / elements) if elements else 0.0
    error = max(2 * math.sqrt(max(0.0, share * (1 - share)) / nonzero) for share in found)
    return math.sqrt(unread) * max(error, min(1.0, 3 / nonzero))
