"""The running median of the detectors."""

from __future__ import annotations

from bench.zoo import detectors


def test_the_running_median_is_that_of_earlier_finite_values() -> None:
    median = detectors.Median()
    assert 10 * [float("inf")] == [median.before(value) for value in (*range(9), float("nan"))]
    assert [float("inf"), 4.5] == [median.before(9.0), median.before(100.0)]
