"""no-gradients is silent on sound habits that leave parameters without a gradient."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import Model, Seen, watching
from tests.agent.verdicts.call_order.test_no_gradients import NAME, backward, loss_of, sgd, step_as_usual


class Game(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.maker, self.judge = torch.nn.Linear(4, 6), torch.nn.Linear(6, 1)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        score: torch.Tensor = self.judge(self.maker(noise))
        return score


def watched(
    folder: Path, model: torch.nn.Module, optimizers: Any, step: Callable[[int], object], steps: int = 12
) -> Seen:
    """Calls step(number) so many times, watched."""
    with watching(folder, model, optimizers) as seen:
        for number in range(steps):
            step(number)
    return seen


def two_players(
    folder: Path, step: Callable[[int, Game, Any, Any], None], steps: int = 40, *, is_frozen: bool = False
) -> Seen:
    """Trains a game, each part with an optimizer of its own; is_frozen: the maker, before it is watched."""
    game = Game()
    game.maker.requires_grad_(not is_frozen)
    makers, judges = sgd(game.maker), sgd(game.judge)
    return watched(folder, game, [makers, judges], lambda number: step(number, game, makers, judges), steps)


def noise() -> torch.Tensor:
    return torch.randn(8, 4)


def step_and_reset(*optimizers: Any) -> None:
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def in_turns(folder: Path) -> Seen:
    """A game: each optimizer has gradients in its own turn, and the other one none."""

    def step(number: int, game: Game, makers: Any, judges: Any) -> None:
        mine = makers if number % 2 else judges
        for part, owner in ((game.maker, makers), (game.judge, judges)):
            part.requires_grad_(owner is mine)
        backward(game(noise()).mean())
        makers.step()
        judges.step()
        makers.zero_grad()
        judges.zero_grad()

    return two_players(folder, step, 24)


def a_frozen_phase(folder: Path) -> Seen:
    def step(number: int, game: Game, makers: Any, judges: Any) -> None:
        if number == 25:
            game.maker.requires_grad_(True)
        backward(game(noise()).mean())
        step_and_reset(makers, judges)

    return two_players(folder, step, is_frozen=True)


def a_detached_phase(folder: Path) -> Seen:
    """The head is trained alone at first; both optimizers step."""

    def step(number: int, game: Game, makers: Any, judges: Any) -> None:
        hidden = game.maker(noise())
        backward(game.judge(hidden.detach() if number < 25 else hidden).mean())
        step_and_reset(makers, judges)

    return two_players(folder, step)


def a_second_optimizer_that_steps_rarely(folder: Path) -> Seen:
    def step(number: int, game: Game, makers: Any, judges: Any) -> None:
        backward(game(noise()).mean())
        step_and_reset(judges)
        if number % 8 == 7:
            step_and_reset(makers)

    return two_players(folder, step)


def adapters(folder: Path) -> Seen:
    model = Model()
    model.requires_grad_(False)
    model.last.requires_grad_(True)
    optimizer = sgd(model)
    return watched(folder, model, optimizer, lambda _: step_as_usual(model, optimizer), 16)


def a_step_without_work_now_and_then(folder: Path) -> Seen:
    model = Model()
    optimizer = sgd(model)

    def step(number: int) -> None:
        optimizer.zero_grad()
        if number % 5:
            backward(loss_of(model))
        optimizer.step()

    return watched(folder, model, optimizer, step, 20)


def gradients_of_another_network_first(folder: Path) -> Seen:
    """A critic is fitted before the model that it judges takes its first step."""
    model, critic = Model(), Model()
    optimizer, critics = sgd(model), sgd(critic)

    def step(number: int) -> None:
        step_as_usual(critic, critics)
        if number > 20:
            step_as_usual(model, optimizer)

    return watched(folder, model, [optimizer, critics], step, 30)


def unused_parameters(folder: Path) -> Seen:
    model = Model()
    extra = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([*model.parameters(), extra], lr=0.01)
    return watched(folder, model, optimizer, lambda _: step_as_usual(model, optimizer))


def only_the_head(folder: Path) -> Seen:
    """The body has gradients and no optimizer."""
    model = Model()
    optimizer = sgd(model.last)
    return watched(folder, model, optimizer, lambda _: step_as_usual(model, optimizer))


def closures(folder: Path) -> Seen:
    model = Model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model)
        backward(loss)
        return loss

    return watched(folder, model, optimizer, lambda _: optimizer.step(closure), 6)  # type: ignore[no-untyped-call]


def a_new_part_with_an_optimizer_of_its_own(folder: Path) -> Seen:
    """As in class-incremental learning: the head is replaced, and trained at another rate."""
    model = Model()
    optimizers = [sgd(model)]

    def step(number: int) -> None:
        if number == 6:
            model.last = torch.nn.Linear(24, 3)
            optimizers.append(torch.optim.SGD(model.last.parameters(), lr=0.2))
        for optimizer in optimizers:
            optimizer.zero_grad()
        backward(loss_of(model))
        for optimizer in optimizers:
            optimizer.step()

    return watched(folder, model, optimizers[0], step, 40)


def updates_through_data(folder: Path) -> Seen:
    """The program updates its weights itself, which changes no version; the optimizer carries a schedule only."""
    model = Model()
    optimizer = sgd(model)

    def step(_: int) -> None:
        weights = list(model.parameters())
        for weight, gradient in zip(weights, torch.autograd.grad(loss_of(model), weights), strict=True):
            weight.data -= 0.1 * gradient
        optimizer.step()

    return watched(folder, model, optimizer, step, 20)


class Resetting(torch.optim.SGD):
    """As SAM: its step() evaluates the closure, and resets the gradients at its end."""

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        super().step()
        self.zero_grad()
        return loss


def closures_whose_gradients_are_reset(folder: Path) -> Seen:
    model = Model()
    optimizer = Resetting(model.parameters(), lr=0.01)

    def closure() -> torch.Tensor:
        with torch.enable_grad():
            loss = loss_of(model)
            backward(loss)
        return loss

    return watched(folder, model, optimizer, lambda _: optimizer.step(closure), 20)


def gradients_used_in_backward(folder: Path) -> Seen:
    """As LOMO: each weight is updated when its gradient comes, and the gradient is dropped."""
    model = Model()
    optimizer = sgd(model)

    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            assert parameter.grad is not None
            parameter.sub_(0.01 * parameter.grad)
        parameter.grad = None

    def step(_: int) -> None:
        backward(loss_of(model))
        optimizer.step()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)  # type: ignore[no-untyped-call]
    return watched(folder, model, optimizer, step)


LOOK_ALIKES = (
    *(in_turns, a_frozen_phase, a_detached_phase, a_second_optimizer_that_steps_rarely, adapters),
    *(a_step_without_work_now_and_then, gradients_of_another_network_first, unused_parameters, only_the_head),
    *(a_new_part_with_an_optimizer_of_its_own, updates_through_data),
    *(closures, closures_whose_gradients_are_reset, gradients_used_in_backward),
)


@pytest.mark.parametrize("program", LOOK_ALIKES, ids=lambda program: program.__name__.replace("_", " "))
def test_sound_habits_are_silent(program: Callable[[Path], Seen], tmp_path: Path) -> None:
    torch.manual_seed(1)
    assert NAME not in program(tmp_path).findings()
