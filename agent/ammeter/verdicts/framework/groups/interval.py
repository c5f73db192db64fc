"""Welch's interval of the difference of two means, for small samples with different scatter.

Pure. B. L. Welch, "The generalization of Student's problem when several different population variances are involved",
Biometrika 34 (1947): the difference of the means, plus and minus Student's t times its standard error
sqrt(sa^2 / na + sb^2 / nb), with the degrees of freedom that the same paper derives.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ammeter.verdicts.framework.groups.student_t import quantile

CONFIDENCE = 0.95
"""The share of such intervals that contain the true difference; the usual choice."""


@dataclass(frozen=True)
class Interval:
    """The difference of the means of two groups, first minus second, with its limits."""

    difference: float
    low: float
    high: float
    degrees: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def welch(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Computes the interval. Both groups have at least two values, and at least one of them scatters."""
    shares = [statistics.variance(values) / len(values) for values in (first, second)]
    error = sum(shares)
    degrees = error**2 / sum(
        share**2 / (len(values) - 1) for share, values in zip(shares, (first, second), strict=True)
    )
    difference = statistics.fmean(first) - statistics.fmean(second)
    margin = quantile(CONFIDENCE, degrees) * math.sqrt(error)
    return Interval(difference, difference - margin, difference + margin, degrees)
