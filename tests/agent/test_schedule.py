from __future__ import annotations

import pytest

from ammeter.schedule import Bucket, Governor


def _run(bucket: Bucket, steps: int, step_seconds: float, cost: float) -> float:
    """Seconds spent by a reader that reads whenever it may."""
    spent = 0.0
    for _ in range(steps):
        bucket.earn(step_seconds)
        if bucket.allows():
            bucket.spend(cost)
            spent += cost
    return spent


@pytest.mark.parametrize(
    ("step_seconds", "cost"), [(0.002, 0.001), (0.002, 0.05), (0.08, 0.002), (10.0, 0.5), (10.0, 3.0)]
)
def test_readings_stay_within_their_share_of_the_step_time(step_seconds: float, cost: float) -> None:
    bucket = Bucket(0.005)
    _run(bucket, 2000, step_seconds, cost)  # the initial credit is spent
    steps = 20_000
    assert _run(bucket, steps, step_seconds, cost) <= 0.005 * steps * step_seconds + 2 * cost


def test_a_reading_that_is_cheap_enough_is_never_refused() -> None:
    bucket = Bucket(0.005)
    assert pytest.approx(_run(bucket, 500, 0.08, 0.0003)) == 500 * 0.0003
    assert 0 == bucket.refused


def test_a_young_run_is_read_densely() -> None:
    bucket = Bucket(0.005)
    assert pytest.approx(_run(bucket, 5, 0.08, 0.01)) == 5 * 0.01


def test_a_reading_of_unknown_cost_is_allowed_once_and_then_paid_back() -> None:
    bucket = Bucket(0.005)
    assert bucket.allows()
    bucket.spend(10.0)
    bucket.earn(80.0)
    assert not bucket.allows()


@pytest.mark.parametrize("budget", [0, -0.1, 1.5])
def test_a_budget_that_is_no_share_is_refused_with_its_value(budget: float) -> None:
    with pytest.raises(ValueError, match=f"budget is {budget!r}; use a share"):
        Governor(budget)
