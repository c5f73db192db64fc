from __future__ import annotations

import numpy as np
import pytest

from ammeter.verdicts.framework.groups.interval import CONFIDENCE, welch
from ammeter.verdicts.framework.groups.student_t import quantile, within


@pytest.mark.parametrize(
    ("degrees", "confidence", "t"),
    [
        (1, 0.95, 12.7062),
        (2, 0.95, 4.3027),
        (3, 0.95, 3.1824),
        (5, 0.95, 2.5706),
        (10, 0.95, 2.2281),
        (30, 0.95, 2.0423),
        (120, 0.95, 1.9799),
        (10_000, 0.95, 1.9602),
        (4, 0.99, 4.6041),
        (9, 0.90, 1.8331),
    ],
)
def test_quantiles_are_those_of_printed_tables(degrees: float, confidence: float, t: float) -> None:
    assert t == pytest.approx(quantile(confidence, degrees), abs=5e-5)


@pytest.mark.parametrize("degrees", [2.0, 2.7, 4.5, 11.3, 200.0])
def test_the_share_within_a_quantile_is_the_confidence(degrees: float) -> None:
    assert pytest.approx(0.95, abs=1e-12) == within(quantile(0.95, degrees), degrees)
    assert 0.0 == within(0.0, degrees)


def test_the_interval_is_that_of_a_worked_example() -> None:
    """Means 20.6 and 22.138; standard errors and degrees of freedom by hand from Welch's formula."""
    first = [20.1, 20.4, 20.9, 21.0]
    second = [21.0, 22.0, 23.2, 22.4, 22.09]
    interval = welch(first, second)
    assert pytest.approx(-1.538, abs=1e-3) == interval.difference
    own, other = np.var(first, ddof=1) / 4, np.var(second, ddof=1) / 5
    assert pytest.approx((own + other) ** 2 / (own**2 / 3 + other**2 / 4)) == interval.degrees
    margin = quantile(0.95, interval.degrees) * (own + other) ** 0.5
    assert pytest.approx(-1.538 - margin, abs=1e-3) == interval.low
    assert pytest.approx(-1.538 + margin, abs=1e-3) == interval.high
    assert interval.excludes_zero


def test_the_interval_contains_the_true_difference_as_often_as_it_says() -> None:
    """Groups of three and five with other scatter: at least 94 of 100 intervals, and not all."""
    random = np.random.default_rng(0)
    held = [
        interval.low <= 0.0 <= interval.high
        for interval in (
            welch(random.normal(5, 0.1, 3).tolist(), random.normal(5, 1.0, 5).tolist()) for _ in range(1500)
        )
    ]
    assert CONFIDENCE - 0.015 < sum(held) / len(held) < CONFIDENCE + 0.025
