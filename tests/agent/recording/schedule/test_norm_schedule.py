from __future__ import annotations

import pytest

from ammeter.recording.schedule.norm_schedule import (
    FALL_STEPS,
    MIN_FALL_INTERVAL_STEPS,
    MIN_JUMP_INTERVAL_STEPS,
    MIN_SPECTRUM_INTERVAL_STEPS,
    NormSchedule,
)


def _read(schedule: NormSchedule, *steps: int) -> None:
    for step in steps:
        schedule.read(step)


def test_nothing_has_to_be_read_without_a_reason() -> None:
    schedule = NormSchedule()
    _read(schedule, 0, 1, 2)
    assert not any(schedule.must_read(step) for step in range(3, 100))


def test_a_reading_after_an_unread_step_requires_the_next_one() -> None:
    schedule = NormSchedule()
    _read(schedule, 0, 5)
    assert [6] == [step for step in range(6, 20) if schedule.must_read(step)]


@pytest.mark.parametrize("interval", [2, 5])
def test_one_of_so_many_steps_has_to_be_read(interval: int) -> None:
    schedule = NormSchedule()
    schedule.interval = interval
    _read(schedule, 0)
    assert list(range(interval, 20)) == [step for step in range(1, 20) if schedule.must_read(step)]


def test_a_jump_of_the_loss_requires_this_step_and_the_next() -> None:
    schedule = NormSchedule()
    assert schedule.loss_jumped(50)
    assert [50, 51] == [step for step in range(50, 60) if schedule.must_read(step)]


def test_a_fall_of_the_loss_requires_all_statistics_of_a_few_steps() -> None:
    schedule = NormSchedule()
    assert not schedule.must_read_all(0)
    required = []
    for step in range(50, 50 + MIN_FALL_INTERVAL_STEPS):
        schedule.loss_fell(step)
        assert schedule.must_read_all(step) <= schedule.must_read(step)
        required += [step] if schedule.must_read_all(step) else []
    assert list(range(50, 50 + FALL_STEPS)) == required


def test_a_loss_that_jumps_in_every_step_requires_few_readings() -> None:
    schedule = NormSchedule()
    required = [step for step in range(320) if schedule.loss_jumped(step) or schedule.must_read(step)]
    assert 2 * 320 / MIN_JUMP_INTERVAL_STEPS == len(required)


def test_a_change_of_the_scale_takes_one_spectrum() -> None:
    schedule = NormSchedule()
    schedule.scale_changed(100)
    assert schedule.must_read(100)
    assert [100] == [step for step in range(95, 130) if schedule.takes_spectrum(step)]


def test_spectra_are_taken_around_a_skip() -> None:
    schedule = NormSchedule()
    assert schedule.takes_spectrum(40, is_skipped=True)
    schedule.scale_changed(41)
    assert [41] == [step for step in range(41, 60) if schedule.must_read(step) and schedule.takes_spectrum(step)]


def test_a_skip_that_becomes_known_late_takes_the_spectrum_of_the_present_step() -> None:
    schedule = NormSchedule()
    schedule.skipped(40, 43)
    assert schedule.takes_spectrum(43)
    assert not schedule.takes_spectrum(44)


def test_an_overflow_storm_takes_few_spectra() -> None:
    schedule = NormSchedule()
    taken = [step for step in range(320) if schedule.takes_spectrum(step, is_skipped=True)]
    assert 2 * 320 / MIN_SPECTRUM_INTERVAL_STEPS == len(taken)
