"""no-gradients is silent on sound habits that leave parameters without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, watching
from tests.agent.verdicts.call_order.test_no_gradients import NAME, backward, loss_of, sgd, step_as_usual


class Game(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = self.judge(self.maker(noise))
        return score


def in_turns(folder: Path) -> Any:
    """A game: each optimizer has gradients in its own turn, and the other one none."""
    game = Game()
    makers, judges = sgd(game.maker), sgd(game.judge)
    with watching(folder, game, [makers, judges]) as seen:
        for step in range(24):
            mine = makers if step % 2 else judges
            for part, owner in ((game.maker, makers), (game.judge, judges)):
                part.requires_grad_(owner is mine)
            backward(game(torch.randn(8, 4)).mean())
            makers.step()
            judges.step()
            makers.zero_grad()
            judges.zero_grad()
    return seen


def a_frozen_phase(folder: Path) -> Any:
    game = Game()
    makers, judges = sgd(game.maker), sgd(game.judge)
    game.maker.requires_grad_(False)
    with watching(folder, game, [makers, judges]) as seen:
        for step in range(40):
            if step == 25:
                game.maker.requires_grad_(True)
            backward(game(torch.randn(8, 4)).mean())
            for optimizer in (makers, judges):
                optimizer.step()
                optimizer.zero_grad()
    return seen


def a_detached_phase(folder: Path) -> Any:
    """The head is trained alone at first; both optimizers step."""
    game = Game()
    makers, judges = sgd(game.maker), sgd(game.judge)
    with watching(folder, game, [makers, judges]) as seen:
        for step in range(40):
            hidden = game.maker(torch.randn(8, 4))
            backward(game.judge(hidden.detach() if step < 25 else hidden).mean())
            for optimizer in (makers, judges):
                optimizer.step()
                optimizer.zero_grad()
    return seen


def a_second_optimizer_that_steps_rarely(folder: Path) -> Any:
    game = Game()
    makers, judges = sgd(game.maker), sgd(game.judge)
    with watching(folder, game, [makers, judges]) as seen:
        for step in range(40):
            backward(game(torch.randn(8, 4)).mean())
            judges.step()
            judges.zero_grad()
            if step % 8 == 7:
                makers.step()
                makers.zero_grad()
    return seen


def adapters(folder: Path) -> Any:
    model = Model()
    model.requires_grad_(False)
    model.last.requires_grad_(True)
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for _ in range(16):
            step_as_usual(model, optimizer)
    return seen


def a_step_without_work_now_and_then(folder: Path) -> Any:
    model = Model()
    optimizer = sgd(model)
    with watching(folder, model, optimizer) as seen:
        for step in range(20):
            optimizer.zero_grad()
            if step % 5:
                backward(loss_of(model))
            optimizer.step()
    return seen


def gradients_of_another_network_first(folder: Path) -> Any:
    """A critic is fitted before the model that it judges takes its first step."""
    model, critic = Model(), Model()
    optimizer, critics = sgd(model), sgd(critic)
    with watching(folder, model, [optimizer, critics]) as seen:
        for step in range(30):
            critics.zero_grad()
            backward(loss_of(critic))
            critics.step()
            if step > 20:
                step_as_usual(model, optimizer)
    return seen


def unused_parameters(folder: Path) -> Any:
    model = Model()
    extra = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.01)
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            step_as_usual(model, optimizer)
    return seen


def only_the_head(folder: Path) -> Any:
    """The body has gradients and no optimizer."""
    model = Model()
    optimizer = sgd(model.last)
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            step_as_usual(model, optimizer)
    return seen


def closures(folder: Path) -> Any:
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        backward(loss)
        return loss

    with watching(folder, model, optimizer) as seen:
        for _ in range(6):
            optimizer.step(closure)  # type: ignore[no-untyped-call]
    return seen


def gradients_used_in_backward(folder: Path) -> Any:
    """As LOMO: each weight is updated when its gradient comes, and the gradient is dropped."""
    model = Model()
    optimizer = sgd(model)

    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.sub_(0.01 * parameter.grad)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    with watching(folder, model, optimizer) as seen:
        for _ in range(12):
            backward(loss_of(model))
            optimizer.step()
    return seen


LOOK_ALIKES = (
    *(in_turns, a_frozen_phase, a_detached_phase, a_second_optimizer_that_steps_rarely, adapters),
    *(a_step_without_work_now_and_then, gradients_of_another_network_first, unused_parameters, only_the_head),
    *(closures, gradients_used_in_backward),
)


@pytest.mark.parametrize("program", LOOK_ALIKES, ids=lambda program: program.__name__.replace("_", " "))
def test_sound_habits_are_silent(program: Callable[[Path], Any], tmp_path: Path) -> None:
    torch.manual_seed(1)
    assert NAME not in program(tmp_path).findings()
