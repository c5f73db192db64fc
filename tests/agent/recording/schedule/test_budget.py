from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from ammeter.recording.schedule.bucket import Bucket, Cost, Need
from ammeter.recording.schedule.budget import Governor
from ammeter.recording.schedule.norm_schedule import PAIR_INTERVAL


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


def _read_steps(
    governor: Governor,
    steps: int,
    step_seconds: float,
    cost: Callable[[int], Cost],
    fixed: float = 0.0001,
    first: int = 0,
) -> tuple[list[int], float]:
    """Returns the steps whose gradients are read, and the CPU seconds of the readings."""
    read, spent = [], 0.0
    for step in range(first, first + steps):
        wall = 0.0
        full, allowed = governor.reads_gradients(step)
        if allowed:
            read.append(step)
            governor.spend_on_gradients(step, cost(step), full=full)
            spent, wall = spent + cost(step).cpu, cost(step).wall
        governor.earn(step_seconds + wall, fixed + wall)
    return read, spent


def _preempted(step: int) -> Cost:
    """A reading of 0.18 ms, during which the machine runs another process for 50 ms one time in six."""
    return Cost(0.00018, 0.05 if random.Random(step).random() < 1 / 6 else 0.00018)


@pytest.mark.parametrize(("step_seconds", "interval"), [(0.025, 3), (0.08, 2), (1.0, 2)])
def test_norms_are_guaranteed_although_readings_are_preempted(step_seconds: float, interval: int) -> None:
    governor = Governor(0.01)
    _read_steps(governor, 1000, step_seconds, _preempted)  # the initial credit is spent
    read, spent = _read_steps(governor, 1000, step_seconds, _preempted, first=1000)
    assert interval >= max(later - earlier for earlier, later in pairwise(read))
    assert spent <= 0.01 * 1000 * step_seconds


def test_an_outlier_of_the_cpu_time_does_not_end_the_guarantee() -> None:
    governor = Governor(0.01)
    read, _ = _read_steps(
        governor, 3000, 0.03, lambda step: Cost(0.02 if step % 100 in (0, 51, 53) else 0.0002, 0.0002)
    )
    assert all(later - earlier <= 2 for earlier, later in pairwise(read))


def test_guaranteed_readings_contain_pairs_of_consecutive_steps() -> None:
    governor = Governor(0.01)
    read, _ = _read_steps(governor, 3000, 0.04, lambda _: Cost(0.00018, 0.00018))
    pairs = [step for step, later in pairwise(read) if later == step + 1]
    assert all(later - earlier <= 2 * PAIR_INTERVAL + 2 for earlier, later in pairwise(pairs))


@pytest.mark.parametrize(("step_seconds", "cost"), [(0.002, 0.0001), (0.03, 0.008), (0.03, 0.012)])
def test_norms_that_are_not_guaranteed_come_in_pairs_within_their_share(step_seconds: float, cost: float) -> None:
    governor = Governor(0.01)
    _read_steps(governor, 2000, step_seconds, lambda _: Cost(cost, cost), fixed=0.0)
    read, spent = _read_steps(governor, 30_000, step_seconds, lambda _: Cost(cost, cost), fixed=0.0, first=2000)
    bursts = [step for step, earlier in zip(read[1:], read, strict=False) if step - earlier > 1]
    assert all(step + 1 in read for step in bursts[:-1])
    assert bursts
    assert spent <= 0.004 * 30_000 * step_seconds + 4 * cost


@pytest.mark.parametrize(
    ("step_seconds", "cost", "interval"), [(0.03, 0.0006, 5), (0.05, 0.0006, 2), (0.03, 0.0018, 14), (0.03, 0.006, 0)]
)
def test_a_dear_reading_is_guaranteed_less_often(step_seconds: float, cost: float, interval: int) -> None:
    governor = Governor(0.01)
    _read_steps(governor, 500, step_seconds, lambda _: Cost(cost, cost))
    assert interval == governor.norm_schedule.interval


def _mixed_steps(governor: Governor, step_seconds: float, fast: float, read: float) -> None:
    """Steps on the fast path and ones with a reading of 0.1 ms, which spend so many seconds in Ammeter."""
    for step in range(100):
        governor.earn(4 * step_seconds, 4 * fast, fast_steps=4)
        governor.spend_on_gradients(step, Cost(0.0001, 0.0001), full=False)
        governor.earn(step_seconds, read)


def test_a_reading_costs_what_the_fast_path_would_have_spared() -> None:
    governor = Governor(0.01)
    _mixed_steps(governor, 0.04, fast=0.0001, read=0.0011)
    assert 5 == governor.norm_schedule.interval  # 1.125 ms with pairs, of the 0.25 ms left of 0.4 ms


def test_norms_are_guaranteed_although_the_fixed_cost_uses_up_the_budget() -> None:
    governor = Governor(0.01)
    _mixed_steps(governor, 0.04, fast=0.0005, read=0.0011)
    assert 6 == governor.norm_schedule.interval  # 0.675 ms with pairs, of 30 % of 0.4 ms


def test_following_the_calls_gets_what_guaranteed_norms_leave() -> None:
    governor = Governor(0.01)
    _mixed_steps(governor, 0.04, fast=0.0001, read=0.0011)
    assert 0.01 - 0.001125 / 5 / 0.04 == pytest.approx(governor.attention.share)


def test_without_a_share_no_norm_is_guaranteed() -> None:
    governor = Governor(0.01)
    governor.norms.share = governor.full.share = 0.0
    governor.norms.fits = governor.full.fits = False
    assert ([], 0.0) == _read_steps(governor, 500, 0.08, _preempted)


def test_guaranteed_readings_leave_no_debt_when_steps_become_short() -> None:
    governor = Governor(0.01)
    _read_steps(governor, 5000, 0.02, lambda _: Cost(0.00018, 0.00018))
    read, _ = _read_steps(governor, 3000, 0.005, lambda _: Cost(0.00018, 0.00018), fixed=0.0, first=5000)
    assert len(read) > 3000 * 0.005 * 0.003 / 0.00018 / 2


def test_readings_that_verdicts_need_have_priority() -> None:
    governor = Governor(0.01)
    level = {}
    for bucket in (governor.full, governor.weights):
        bucket.spend(0.02)  # the credit is spent
    for _ in range(Need(3, 1000).readings):
        governor.full.spend(0.0)
    for _ in range(100):
        governor.earn(0.08)
        level = {"full": governor.full._level, "weights": governor.weights._level}
    assert level["weights"] > level["full"] * governor.weights.share / governor.full.share


def test_a_need_begins_anew() -> None:
    bucket = Bucket(0.005, 0.0, need=Need(2, 100))
    assert bucket.is_owed()
    for _ in range(2):
        bucket.spend(0.001)
    assert not bucket.is_owed()
    bucket.pass_steps(100)
    assert bucket.is_owed()


def test_a_bucket_that_can_pay_is_owed_nothing() -> None:
    assert not Bucket(0.005, need=Need(2, 100)).is_owed()
    assert not Bucket(0.0, 0.0, need=Need(2, 100)).is_owed()


def test_later_work_on_a_reading_is_charged_and_is_no_reading_of_its_own() -> None:
    bucket = Bucket(0.005, need=Need(1, 100))
    bucket.spend(0.001)
    bucket.spend(0.001)
    bucket.charge(Cost(0.02, 0.03))
    assert not bucket.fits
    assert 0.001 == bucket.usual_cost
    assert 0.032 == pytest.approx(bucket.wall_seconds)
    bucket.earn(2.6)
    assert bucket.fits
