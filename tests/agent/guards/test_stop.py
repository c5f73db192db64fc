from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter import guards
from ammeter.wire.frames import Bye
from tests.agent.guarded import Outcome, poison, train
from tests.agent.training import stream


def stopped(outcome: Outcome) -> ammeter.Stopped:
    assert isinstance(outcome.raised, ammeter.Stopped)
    return outcome.raised


def test_poisoned_weights_end_the_run_in_the_step_that_shows_them(tmp_path: Path) -> None:
    outcome = train(tmp_path, [guards.Stop()], before=poison(20))
    error = stopped(outcome)
    assert ("nonfinite-weights", 20, None) == (error.verdict, error.step, error.checkpoint)
    assert 20 == len(outcome.losses)
    assert str(error).startswith("nonfinite-weights at step 20: loud.mix.weight contains NaN or Inf, read at step ")
    assert str(error).endswith("This run has written no complete checkpoint before that step.")
    assert [("stopped", 20)] == outcome.actions()


def test_the_journal_says_goodbye_before_the_program_hears_of_it(tmp_path: Path) -> None:
    outcome = train(tmp_path, [guards.Stop()], before=poison(20))
    rows, frames = stream(outcome.run, tmp_path)
    assert 20 == rows.steps[-1]
    (bye,) = [frame for frame in frames if isinstance(frame, Bye)]
    assert ("exception", 20) == (bye.reason, bye.step)
    assert bye.message == f"Stopped: {outcome.raised}"


def test_without_a_scaler_it_ends_where_the_next_step_begins(tmp_path: Path) -> None:
    outcome = train(tmp_path, [guards.Stop()], before=poison(20), with_scaler=False, dtype=torch.bfloat16)
    assert ("nonfinite-weights", 20) == (stopped(outcome).verdict, stopped(outcome).step)
    assert 21 == len(outcome.losses)


@pytest.mark.parametrize(("at", "budget"), [(20, 1.0), (400, 0.001)])
def test_a_scale_without_an_inverse_ends_the_run_in_its_first_step(at: int, budget: float, tmp_path: Path) -> None:
    """With the small budget it is one of the steps that are rested in."""

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        if step == at:
            scaler._scale.fill_(2.0**-130)

    outcome = train(tmp_path, [guards.Stop()], before=before, steps=500, budget=budget)
    assert ("scale-underflowed", at) == (stopped(outcome).verdict, stopped(outcome).step)


def test_it_names_the_newest_complete_checkpoint_from_before(tmp_path: Path) -> None:
    spoil = poison(20)

    def before(step: int, net: Any, optimizer: Any, scaler: Any) -> None:
        spoil(step, net, optimizer, scaler)
        if step in (5, 10, 15, 20):
            whole = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()} if step != 15 else {}
            torch.save({"model": net.state_dict(), "step": step, **whole}, tmp_path / f"{step}.pt")

    error = stopped(train(tmp_path / "journals", [guards.Stop()], before=before))
    assert str(tmp_path / "10.pt") == error.checkpoint
    assert str(error).endswith(f"Go back to {tmp_path}/10.pt, written after 10 steps.")


def test_only_the_verdicts_that_it_names_count(tmp_path: Path) -> None:
    outcome = train(tmp_path, [guards.Stop(["scale-underflowed"])], before=poison(20))
    assert outcome.raised is None
    assert 30 == len(outcome.losses)


@pytest.mark.parametrize("budget", [0.01, 1.0])
def test_a_run_of_many_short_steps_is_stopped_at_the_same_step(budget: float, tmp_path: Path) -> None:
    """With the small budget most of them are rested in."""
    outcome = train(tmp_path, [guards.Stop()], before=poison(400), steps=500, budget=budget)
    assert ("nonfinite-weights", 400) == (stopped(outcome).verdict, stopped(outcome).step)


def test_a_program_that_goes_on_in_spite_of_it_is_left_alone(tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    run = ammeter.watch(net, optimizer, dir=tmp_path, guards=[guards.Stop()])
    errors = 0
    for step in range(12):
        try:
            optimizer.zero_grad()
            loss = net(torch.ones(1, 2)).sum() * (float("nan") if step == 4 else 1.0)
            loss.backward()
            optimizer.step()
        except ammeter.Stopped:
            errors += 1
    run.close()
    assert 1 == errors
