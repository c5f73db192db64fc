"""Weights and moments with Inf by design, and gradients that the program repairs, are no fault."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.training import watching


class Chained(torch.nn.Module):
    """Log probabilities of paths, with transitions that are forbidden by -Inf in a trained weight."""

    def __init__(self, forbidden: float) -> None:
        super().__init__()
        self.emit = torch.nn.Linear(4, 3)
        transitions = torch.randn(3, 3) * 0.1
        transitions[0, 2] = forbidden
        self.transitions = torch.nn.Parameter(transitions)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        emitted = self.emit(x)
        paths = torch.logsumexp(emitted[:, 0][:, :, None] + self.transitions, 1) + emitted[:, 1]
        return torch.logsumexp(paths, 1).square().mean()


@pytest.mark.parametrize("breaks", [True, False])
def test_a_weight_that_forbids_by_inf_is_no_fault_until_it_is_nan(breaks: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Chained(-math.inf)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(14):
            loss = model(torch.randn(5, 2, 4))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if breaks and step == 9:
                model.transitions.data[1, 1] = math.nan
    assert breaks == bool(seen.events("weights.nonfinite"))
    assert breaks == ("nonfinite-weights" in seen.findings())


class Minimum(torch.optim.SGD):
    """Keeps the smallest gradient, which begins with Inf."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                low = state.get("low", torch.full_like(weight, math.inf))
                state["low"] = torch.where(weight.grad.abs() > 1e3, weight.grad.abs(), low)
        return super().step(closure)


def test_a_moment_of_the_program_that_begins_with_inf_is_no_fault(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = Minimum(model.parameters(), 0.01)
    with watching(tmp_path, model, optimizer) as seen:
        for _ in range(10):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).square().mean().backward()
            optimizer.step()
    assert [] == seen.events("moments.nonfinite")


def _repair(optimizer: Any, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.grad.nan_to_num_(0.0, 0.0, 0.0)


@pytest.mark.parametrize("repairs", [True, False])
def test_gradients_that_the_program_repairs_before_the_step_are_no_fault(repairs: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if repairs:
        optimizer.register_step_pre_hook(_repair)
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(24):
            output = model(torch.randn(5, 4)) * (step not in (10, 14))
            loss = output.square().sum(1).sqrt().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert repairs != ("nonfinite-gradient" in seen.findings())
