"""A NaN in a bias, which autograd saves nowhere, is that of the weights and no fault of an operator or its kernel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import log_softmax, mse_loss, nll_loss

from tests.agent.training import watching

BAD_FROM = 9


class Classifier(nn.Module):
    """Ends in log_softmax, which saves its output and not its input."""

    def __init__(self, before: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.before, self.last = before, last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return log_softmax(self.last(self.before(x)).flatten(1), dim=1)


MODELS: dict[str, Any] = {
    "linear": lambda: Classifier(nn.Linear(6, 8), nn.Linear(8, 3)),
    "convolution": lambda: Classifier(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 3, 6)),
    "batch norm": lambda: Classifier(nn.Linear(6, 3), nn.BatchNorm1d(3)),
    "group norm": lambda: Classifier(nn.Linear(6, 3), nn.GroupNorm(1, 3)),
}


def origins(folder: Path, model: Classifier, *, frozen: bool) -> tuple[list[dict[str, Any]], set[str]]:
    """Trains a model whose last bias becomes NaN; returns the origins that were found, and the verdicts."""
    torch.manual_seed(0)
    bias: Any = model.last.bias
    bias.requires_grad_(not frozen)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(folder, model, optimizer) as seen:
        for step in range(12):
            if step == BAD_FROM:
                with torch.no_grad():
                    bias[0] = math.nan
            optimizer.zero_grad()
            torch.autograd.backward(nll_loss(model(torch.randn(8, 6)), torch.randint(3, (8,))))
            optimizer.step()
    return [event.data for event in seen.events("origin.found")], set(seen.findings())


@pytest.mark.parametrize("name", MODELS)
def test_a_bias_that_is_trained_is_the_origin(name: str, tmp_path: Path) -> None:
    found, verdicts = origins(tmp_path, MODELS[name](), frozen=False)
    assert ("weights", "last.bias") == (found[0]["kind"], found[0]["tensor"])
    assert "nonfinite-weights" in verdicts


@pytest.mark.parametrize("name", MODELS)
def test_a_bias_that_is_not_in_the_graph_accuses_no_kernel(name: str, tmp_path: Path) -> None:
    found, verdicts = origins(tmp_path, MODELS[name](), frozen=True)
    assert {None} == {data.get("trial") for data in found}
    assert "kernel-nan" not in verdicts


@pytest.mark.parametrize("inside", [True, False], ids=["loss inside autocast", "loss outside"])
def test_a_bias_that_autocast_casts_is_the_origin(inside: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(12):
            if step == BAD_FROM:
                model[2].bias.data[0] = math.nan
            optimizer.zero_grad()
            x = torch.rand(8, 6)
            with torch.autocast("cpu", torch.bfloat16):
                output = model(x)
                loss = mse_loss(output, x) if inside else None
            torch.autograd.backward(mse_loss(output, x) if loss is None else loss)
            optimizer.step()
    found = seen.events("origin.found")[0].data
    assert ("weights", "2.bias") == (found["kind"], found["tensor"])


def test_a_bad_weight_explains_a_detached_result_of_it(tmp_path: Path) -> None:
    """As in actor and critic: the advantage is a number that the critic has computed."""
    torch.manual_seed(0)
    model = nn.Linear(6, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(tmp_path, model, optimizer) as seen:
        for step in range(12):
            if step == BAD_FROM:
                model.bias.data[1] = math.nan
            optimizer.zero_grad()
            policy, value = model(torch.randn(6)).unbind()
            (-policy * (1.0 - value.item()) + (value - 1.0).square()).backward()
            optimizer.step()
    found = seen.events("origin.found")[0].data
    assert ("weights", "bias") == (found["kind"], found["tensor"])
