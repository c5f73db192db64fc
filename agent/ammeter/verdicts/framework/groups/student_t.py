"""Student's t distribution, without a dependency.

Pure. The distribution function is the regularized incomplete beta function (Abramowitz and Stegun, 26.5.27), which its
continued fraction computes (26.5.8) by Lentz's method.
"""

from __future__ import annotations

import math

MAX_TERMS = 300
"""Terms of the continued fraction; it converges in about the square root of the degrees of freedom."""

TOLERANCE = 1e-14
"""Relative change of a term at which the fraction has converged: a few roundings of float64."""

MAX_T = 1e8
"""Upper limit of the search. With two degrees of freedom, the 99.99 % interval ends at 100."""

BISECTIONS = 120
"""Halvings of the range of the search, more than float64 can tell apart."""

_TINY = 1e-300
"""In place of a zero in the fraction, as Lentz's method has it: far below each of its terms."""


def quantile(confidence: float, degrees: float) -> float:
    """Returns t such that a share `confidence` of the distribution lies between -t and t."""
    low, high = 0.0, MAX_T
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return high


def within(t: float, degrees: float) -> float:
    """Returns the share of the distribution between -t and t."""
    return 1.0 - _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    logarithm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    front = math.exp(logarithm)
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1 / _nonzero(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, MAX_TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + term * d)
            c = _nonzero(1 + term / c)
            result *= c * d
        if abs(c * d - 1) < TOLERANCE:
            break
    return result


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
