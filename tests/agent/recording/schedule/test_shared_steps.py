"""Shared steps are the same on every rank, come in pairs, and become rare."""

from __future__ import annotations

from ammeter.recording.schedule.budget import Governor
from ammeter.recording.schedule.shared_steps import SharedSteps, next_shared


def shared_until(end: int) -> list[int]:
    steps = SharedSteps()
    steps.begin()
    return [step for step in range(end) if steps.is_due(step)]


def test_they_come_in_pairs_with_growing_distance() -> None:
    begins = [12, 16, 20, 24, 32, 40, 48, 60, 64, 80]
    assert [*range(10), *(step for begin in begins for step in (begin, begin + 1))] == shared_until(90)
    assert 2100 >= len(shared_until(1_000_001)) > 2000
    assert all({step, step + 1} <= set(shared_until(3002)) for step in (100, 1000, 1024, 2000, 3000))


def test_steps_that_were_not_asked_for_are_passed_over() -> None:
    steps = SharedSteps()
    steps.begin()
    assert not steps.is_due(10)
    assert 12 == steps.next
    assert [12, 12, 96, 1000] == [next_shared(step) for step in (10, 12, 82, 770)]


def test_a_run_without_other_ranks_has_none() -> None:
    assert not any(SharedSteps().is_due(step) for step in range(2000))


def test_a_shared_step_is_due_whatever_the_budget_allows() -> None:
    governor = Governor(0.01)
    for bucket in (governor.norms, governor.full, governor.weights, governor.kernels):
        bucket.spend(1.0)
    assert not governor.due(12)
    governor.shared_steps.begin()
    assert [12, 13, 16] == [step for step in range(10, 17) if governor.due(step)]
