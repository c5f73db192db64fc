"""Where steps are so short that following every call is too much, it happens in stretches, without false findings."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ammeter
from ammeter.recording.schedule import attention
from ammeter.recording.schedule.attention import FIRST_STRETCH_STEPS, MAX_INTERVAL_STEPS, STRETCH_STEPS, Attention
from ammeter.recording.schedule.budget import Governor
from tests.agent.healthy_programs import HEALTHY, Program
from tests.agent.training import events, stream


def follow(attention: Governor, steps: int, step_seconds: float, following: float, resting: float) -> list[bool]:
    """Which of these steps are followed when following one, and not following it, cost this much."""
    followed, follows = [], True
    for _ in range(steps):
        followed.append(follows)
        attention.earn(step_seconds, following if follows else resting)
        follows = attention.follows(False)
    return followed


def test_a_run_of_long_steps_is_followed_all_along() -> None:
    assert all(follow(Governor(0.01), 5000, 0.1, 0.0004, 0.0002))


def test_a_run_of_short_steps_keeps_to_its_share_behind_its_first_steps() -> None:
    followed = follow(Governor(0.01), 20_000, 0.02, 0.0002, 0.00005)
    assert all(followed[:FIRST_STRETCH_STEPS])
    later = followed[2 * MAX_INTERVAL_STEPS :]
    share = sum(later) / len(later)
    assert share == pytest.approx((0.005 * 0.02 - 0.00005) / (0.0002 - 0.00005), rel=0.2)


def test_a_run_of_tiny_steps_is_followed_at_least_now_and_then() -> None:
    later = follow(Governor(0.01), 20_000, 0.001, 0.0002, 0.00005)[2 * MAX_INTERVAL_STEPS :]
    assert sum(later) / len(later) == pytest.approx(STRETCH_STEPS / (STRETCH_STEPS + MAX_INTERVAL_STEPS), rel=0.2)


def test_a_short_run_is_followed_again_whenever_it_is_twice_as_long() -> None:
    followed = follow(Governor(0.01), 1200, 0.001, 0.005, 0.00005)
    assert [(64, 128), (136, 272), (280, 560)] == [
        (begin, next(step for step in range(begin, 1200) if followed[step])) for begin in (64, 136, 280)
    ]


def test_preset_full_follows_every_call() -> None:
    assert all(follow(Governor(0.01, "full"), 2000, 0.001, 0.0002, 0.00005))


def test_a_bad_step_is_followed_by_a_stretch_but_not_each_of_them() -> None:
    governor = Governor(0.01)
    follow(governor, 2 * MAX_INTERVAL_STEPS, 0.001, 0.0002, 0.00005)
    while governor.attention.follows or governor.attention.steps < MAX_INTERVAL_STEPS // 8:
        governor.earn(0.001, 0.00005)
        governor.follows(False)
    assert governor.follows(True)
    followed = []
    for _ in range(MAX_INTERVAL_STEPS):
        governor.earn(0.001, 0.0002 if governor.attention.follows else 0.00005)
        followed.append(governor.follows(True))
    assert 0.3 > sum(followed) / len(followed)


@pytest.fixture
def in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps followed, one or two left out."""
    monkeypatch.setattr(attention, "FIRST_STRETCH_STEPS", 2)
    monkeypatch.setattr(attention, "STRETCH_STEPS", 2)
    lengths = iter([1, 2, 1, 3] * 10_000)
    monkeypatch.setattr(Attention, "_interval", lambda self, seconds: next(lengths))


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("program", HEALTHY, ids=lambda program: program.__name__.replace("_", " "))
def test_a_healthy_program_is_told_of_nothing_however_it_is_followed(
    program: Program, tmp_path: Path, in_turns: None
) -> None:
    torch.manual_seed(0)
    assert {} == program(tmp_path).usage()


@pytest.mark.parametrize("mistake", ["not scaled", "not reset"])
def test_a_mistake_that_begins_late_is_found_in_a_stretch_and_the_rows_say_which_those_are(
    mistake: str, tmp_path: Path, in_turns: None
) -> None:
    model = torch.nn.Linear(4, 2)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=1e-3), torch.amp.GradScaler("cpu", init_scale=16.0)
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    for step in range(40):
        wrong = mistake if step >= 20 else ""
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.ones(3, 4)).sum()
        (loss * 1.0 if wrong == "not scaled" else scaler.scale(loss)).backward()
        scaler.step(optimizer)
        scaler.update()
        if wrong != "not reset":
            optimizer.zero_grad()
    run.close()
    rows, frames = stream(run.id, tmp_path)
    (event,) = events(frames, "usage.loss_not_scaled" if mistake == "not scaled" else "usage.gradients_not_reset")
    followed = rows.scalar("calls_followed").tolist()
    assert {0.0, 1.0} == set(followed)
    assert 20 <= event.step <= 30
    assert 1.0 == followed[event.step]
