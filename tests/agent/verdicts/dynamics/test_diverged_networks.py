"""diverged over small networks whose learning rate is the usual one, or many times as high."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.verdicts.causality import explain
from ammeter.verdicts.framework.finding import Finding
from tests.agent.training import watching


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(32, 16)
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = torch.nn.Linear(16, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(self.embed(x)))[:, -1]
        return logits


def perceptron() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(12, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))


def convolutions() -> torch.nn.Module:
    conv = torch.nn.Conv1d(1, 8, 3, padding=1)
    rest = (torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(96, 5))
    return torch.nn.Sequential(torch.nn.Unflatten(1, (1, 12)), conv, *rest)


def batch_for(model: torch.nn.Module, dice: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(model, Attention):
        words = torch.randint(32, (16, 6), generator=dice)
        return words, words[:, 0]
    x = torch.randn(16, 12, generator=dice)
    return x, x[:, :5].argmax(1)


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "perceptron": perceptron,
    "convolutions": convolutions,
    "attention": Attention,
}
OPTIMIZERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], float]] = {
    "sgd": (lambda weights, lr: torch.optim.SGD(weights, lr=lr), 0.05),
    "momentum": (lambda weights, lr: torch.optim.SGD(weights, lr=lr, momentum=0.9, nesterov=True), 0.02),
    "adamw": (lambda weights, lr: torch.optim.AdamW(weights, lr=lr), 1e-3),
    "adam, one by one": (lambda weights, lr: torch.optim.Adam(weights, lr=lr, foreach=False), 1e-3),
    "rmsprop": (lambda weights, lr: torch.optim.RMSprop(weights, lr=lr), 1e-3),
}


def trained(
    folder: Path, model: str, optimizer: str, times: float, steps: int = 80, loss: Any = None, **options: Any
) -> dict[str, Finding]:
    """What is found of a small network whose learning rate is `times` the usual one."""
    torch.manual_seed(3)
    dice = torch.Generator().manual_seed(4)
    net = MODELS[model]()
    make, rate = OPTIMIZERS[optimizer]
    steps_with = make(net.parameters(), lr=rate * times)
    criterion = loss or torch.nn.functional.cross_entropy
    with watching(folder, net, steps_with, **options) as seen:
        for _ in range(steps):
            x, y = batch_for(net, dice)
            steps_with.zero_grad()
            torch.autograd.backward(criterion(net(x), y))
            steps_with.step()
    return seen.findings()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_learning_rate_a_thousand_times_too_high_is_the_one_finding(
    model: str, optimizer: str, tmp_path: Path
) -> None:
    found = explain([("it", finding) for finding in trained(tmp_path, model, optimizer, 1000).values()])
    assert ["diverged"] == [cause.finding.verdict for cause in found]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_ten_times_the_usual_learning_rate_is_silent(model: str, optimizer: str, tmp_path: Path) -> None:
    assert "diverged" not in trained(tmp_path, model, optimizer, 10.0, 120)


def test_the_usual_learning_rate_is_silent(tmp_path: Path) -> None:
    for model in MODELS:
        assert "diverged" not in trained(tmp_path / model, model, "adamw", 1.0)


def squares(output: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return (output - 1000.0 * classes[:, None]).square().mean()


def a_sum(output: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(output, classes, reduction="sum")


@pytest.mark.parametrize("loss", [squares, a_sum])
def test_losses_of_a_large_scale_are_silent(loss: Any, tmp_path: Path) -> None:
    assert "diverged" not in trained(tmp_path, "perceptron", "adamw", 1.0, 150, loss)


def test_a_rate_that_jumps_in_the_middle_of_a_run_is_found_at_its_step(tmp_path: Path) -> None:
    torch.manual_seed(3)
    dice = torch.Generator().manual_seed(4)
    net = perceptron()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    with watching(tmp_path, net, optimizer) as seen:
        for step in range(160):
            optimizer.param_groups[0]["lr"] = 500.0 if step >= 100 else 0.05
            x, y = batch_for(net, dice)
            optimizer.zero_grad()
            torch.autograd.backward(torch.nn.functional.cross_entropy(net(x), y))
            optimizer.step()
    finding = seen.findings()["diverged"]
    assert 100 <= finding.first_step <= 103
