from __future__ import annotations

from itertools import pairwise

import pytest

from ammeter.recording.budget import Bucket, Governor


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
    assert 3 * 0.003 == pytest.approx(_run(bucket, 3, 0.08, 0.003))


def test_a_patient_bucket_has_its_credit_last_until_the_run_has_got_somewhere() -> None:
    bucket = Bucket(0.0004, patient=True)
    read = []
    for step in range(200):
        bucket.earn(0.002)
        if bucket.allows():
            bucket.spend(0.002)
            read.append(step)
    assert 5 == len(read)
    assert all(later >= 2 * earlier for earlier, later in pairwise(read[1:]))


@pytest.mark.parametrize(("step_seconds", "cost"), [(0.002, 0.001), (0.08, 0.00001), (0.08, 0.00005)])
def test_patience_loses_nothing_in_the_long_run(step_seconds: float, cost: float) -> None:
    spent = [_run(Bucket(0.0004, patient=patient), 50_000, step_seconds, cost) for patient in (False, True)]
    assert spent[0] == pytest.approx(spent[1], rel=0.01)


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


def test_what_every_step_costs_is_paid_before_a_reading() -> None:
    governor = Governor(0.01)
    total = 0.0
    for _ in range(2000):
        spent = 0.0004
        if governor.norms.allows():
            governor.norms.spend(0.001)
            spent += 0.001
        total += spent
        governor.earn(0.08, spent)
    assert total <= 0.01 * 2000 * 0.08
    assert 80 < governor.norms.allowed < 300


def test_a_run_whose_fixed_cost_eats_the_budget_is_read_now_and_then() -> None:
    governor = Governor(0.01)
    for _ in range(20_000):
        spent = 0.0002
        if governor.norms.allows():
            governor.norms.spend(0.0005)
            spent += 0.0005
        governor.earn(0.002, spent)
    assert 0 < governor.norms.allowed < 300
