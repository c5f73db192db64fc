"""Updates that the program undoes before the next step are reported, others are not."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.probes.weights.undone import UNKNOWN, Elements
from ammeter.recording.schedule import budget
from ammeter.tensors.slices import Buffer, Slices
from tests.agent.training import Seen, watching

STEPS = 40


@pytest.fixture(autouse=True)
def _each_step_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(budget.PRESETS, "default", lambda budget: (math.inf,) * 4)


class Loop:
    """Trains, and calls a function behind each step."""

    def __init__(self, after: Callable[[Loop, int], None], optimizer: type[torch.optim.Optimizer] = torch.optim.SGD):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        make: Any = optimizer
        self.optimizer: Any = make(self.model.parameters(), lr=0.1)
        self.after, self.kept = after, copy.deepcopy(self.model.state_dict())

    def loss(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = (self.model(torch.randn(8, 6)) - 1).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    def watched(self, folder: Path) -> Seen:
        with watching(folder, self.model, self.optimizer) as seen:
            for step in range(STEPS):
                self.kept = copy.deepcopy(self.model.state_dict())
                if type(self.optimizer) is torch.optim.LBFGS:
                    self.optimizer.step(self.loss)  # type: ignore[no-untyped-call]
                else:
                    self.loss()
                    self.optimizer.step()
                self.after(self, step)
        assert [] == seen.events("probe.failed")
        return seen


def outcomes(seen: Seen) -> list[bool]:
    return [event.data["undone"] for event in seen.events("weights.undone")]


def load(loop: Loop, step: int) -> None:
    loop.model.load_state_dict(loop.kept)


def copy_back(loop: Loop, step: int) -> None:
    with torch.no_grad():
        torch._foreach_copy_(list(loop.model.parameters()), list(loop.kept.values()))


def nothing(loop: Loop, step: int) -> None:
    pass


def load_at_times(loop: Loop, step: int) -> None:
    """As a line search that rejects two updates in a row."""
    if step % 3:
        load(loop, step)


def averaged(loop: Loop, step: int) -> None:
    """Returns to the weights of before, and moves a part of the way, as the outer step of Reptile does."""
    with torch.no_grad():
        for parameter, before in zip(loop.model.parameters(), loop.kept.values(), strict=True):
            parameter.copy_(before + 0.1 * (parameter - before))


def frozen(loop: Loop, step: int) -> None:
    """Each following step changes nothing, so that nothing is undone."""
    loop.optimizer.param_groups[0]["lr"] = 0.0


@pytest.mark.parametrize("undo", [load, copy_back])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_updates_that_are_undone_are_reported_once(undo: Any, optimizer: Any, tmp_path: Path) -> None:
    assert [True] == outcomes(Loop(undo, optimizer).watched(tmp_path))


def test_the_end_is_reported_too(tmp_path: Path) -> None:
    def until_half(loop: Loop, step: int) -> None:
        if step < STEPS // 2:
            load(loop, step)

    assert [True, False] == outcomes(Loop(until_half).watched(tmp_path))


@pytest.mark.parametrize("after", [nothing, load_at_times, averaged, frozen])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.LBFGS])
def test_other_programs_report_none(after: Any, optimizer: Any, tmp_path: Path) -> None:
    assert [] == outcomes(Loop(after, optimizer).watched(tmp_path))


def test_a_step_that_raises_leaves_no_comparison(tmp_path: Path) -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            super().step(closure)
            raise ValueError("of the program's own")

    def undo(loop: Loop, step: int) -> None:
        load(loop, step)

    loop = Loop(undo)
    with watching(tmp_path, loop.model, loop.optimizer) as seen:
        for step in range(STEPS):
            loop.kept = copy.deepcopy(loop.model.state_dict())
            loop.optimizer.__class__ = Failing if step % 2 else torch.optim.SGD
            loop.loss()
            with suppress(ValueError):
                loop.optimizer.step()
            undo(loop, step)
    assert [] == seen.events("probe.failed")


def test_elements_of_a_step_that_raised_are_not_compared() -> None:
    values = torch.arange(1.0, 9.0)
    cut = Slices([values])
    buffer, elements = Buffer(cut), Elements()
    cut.copy([values], buffer)
    assert elements.compared(buffer) is None
    elements.before(buffer)
    elements.after(buffer)
    assert (UNKNOWN,) == (float(elements.compared(buffer) or torch.zeros(())),)
    elements.before(buffer)
    assert elements.compared(buffer) is None
