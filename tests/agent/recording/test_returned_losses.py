"""The loss of a program that never calls backward() is recorded, and a measured gradient is no loss of a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from ammeter.recording.fast_path import buffer
from ammeter.recording.fast_path.callbacks import Callbacks
from ammeter.recording.schedule.attention import Attention
from ammeter.recording.schedule.budget import Governor
from tests.agent.training import Seen, stream, watching

STEPS = 24
Net = torch.nn.Sequential
Train = Callable[[Net, torch.Tensor, torch.Tensor], float]


def assign(model: Net, gradients: Any) -> None:
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient


def returned(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    loss = functional.cross_entropy(model(x), y)
    assign(model, torch.autograd.grad(loss, list(model.parameters())))
    return loss.item()


def transformed(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    def loss_of(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    gradients, loss = torch.func.grad_and_value(loss_of)(dict(model.named_parameters()))
    assign(model, gradients.values())
    return float(loss.item())


def detached(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    """Without a module: no forward pass marks the beginning of the step."""

    def loss_of(weights: list[torch.Tensor]) -> torch.Tensor:
        first, bias, last, last_bias = weights
        return functional.cross_entropy((x @ first.T + bias).relu() @ last.T + last_bias, y)

    gradients, loss = torch.func.grad_and_value(loss_of)([parameter.detach() for parameter in model.parameters()])
    assign(model, gradients)
    return float(loss.item())


def own_scaled(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    loss = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss * 4096.0, list(model.parameters()))
    assign(model, [gradient / 4096.0 for gradient in gradients])
    return loss.item()


def measured(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    """The gradient of a part of the loss is only measured."""
    model.zero_grad()
    logits = model(x)
    torch.autograd.grad(logits.square().mean(), list(model.parameters()), retain_graph=True)
    loss = functional.cross_entropy(logits, y)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item()


def penalized(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    """The norm of the gradient is a part of the loss."""
    model.zero_grad()
    loss = functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    total = loss + 0.1 * sum(gradient.square().sum() for gradient in gradients)
    total.backward()  # type: ignore[no-untyped-call]
    return total.item()


def accumulated(model: Net, x: torch.Tensor, y: torch.Tensor) -> float:
    halves = [functional.cross_entropy(model(some), few) for some, few in ((x[:8], y[:8]), (x[8:], y[8:]))]
    gradients = [torch.autograd.grad(loss / 2, list(model.parameters())) for loss in halves]
    assign(model, [one + other for one, other in zip(*gradients, strict=True)])
    return float(sum(halves).detach()) / 2  # type: ignore[union-attr]


def trained(folder: Path, train: Train, ignored: int = -1, between: Callable[[Net], Any] = id) -> tuple[Seen, Any]:
    """Trains; from step `ignored` on all targets are ignored. Returns what was recorded, and the true losses."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    with watching(folder, model, optimizer, budget=1.0) as seen:
        for step in range(STEPS):
            x = torch.randn(16, 6)
            losses.append(train(model, x, x[:, :3].argmax(1) if ignored != step else torch.full((16,), -100)))
            optimizer.step()
            between(model)
    return seen, np.array(losses, np.float32)


@pytest.mark.parametrize("train", [returned, transformed, detached, own_scaled, measured, penalized, accumulated])
def test_each_step_has_its_own_loss(train: Train, tmp_path: Path) -> None:
    seen, losses = trained(tmp_path, train)
    rows, _ = stream(seen.run, tmp_path)
    assert list(range(STEPS)) == rows.steps.tolist()
    np.testing.assert_allclose(losses, rows.loss(), rtol=1e-5)
    assert {} == seen.findings()


@pytest.mark.parametrize("train", [returned, transformed, detached])
def test_a_loss_without_targets_is_named_with_its_line_and_call(train: Train, tmp_path: Path) -> None:
    seen, _ = trained(tmp_path, train, ignored=11)
    finding = seen.findings()["masked-labels"]
    assert 11 == finding.first_step
    assert "test_returned_losses.py:" in str(finding.caller)
    assert finding.cause.endswith("passed that loss on to torch.autograd.grad().")


def test_a_fast_step_has_the_same_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "end_stretch", lambda self, *seconds: None)
    monkeypatch.setattr(Governor, "follows", lambda self, urgent: False)
    monkeypatch.setattr(Governor, "due", lambda self, step: False)
    monkeypatch.setattr(buffer, "FLUSH_SECONDS", 10.0)
    fast: list[float] = []
    record = Callbacks._differentiates

    def count(self: Callbacks, root: torch.Tensor, *call: Any) -> None:
        fast.append(root.item())
        record(self, root, *call)

    monkeypatch.setattr(Callbacks, "_differentiates", count)
    seen, losses = trained(tmp_path, returned, ignored=STEPS - 2)
    rows, _ = stream(seen.run, tmp_path)
    np.testing.assert_allclose(losses, rows.loss(), rtol=1e-5)
    assert fast
    assert math.isnan(fast[-1])
    assert STEPS - 2 == seen.findings()["masked-labels"].first_step


def test_gradients_by_samples_and_by_inputs_are_no_losses(tmp_path: Path) -> None:
    def measure(model: Net) -> None:
        x = torch.randn(4, 6, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x)
        weights = dict(model.named_parameters())
        square = lambda w, one: torch.func.functional_call(model, w, (one[None],)).square().sum()  # noqa: E731
        torch.func.vmap(torch.func.grad(square), (None, 0))(weights, x.detach())

    seen, losses = trained(tmp_path, returned, between=measure)
    rows, _ = stream(seen.run, tmp_path)
    np.testing.assert_allclose(losses, rows.loss(), rtol=1e-5)


def test_the_loss_of_a_closure_is_that_of_its_first_evaluation(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    losses = []
    with watching(tmp_path, model, optimizer, budget=1.0) as seen:
        for _ in range(6):
            x = torch.randn(16, 6)

            def closure(x: torch.Tensor = x) -> float:
                optimizer.zero_grad()
                return returned(model, x, x[:, :3].argmax(1))

            losses.append(float(optimizer.step(closure)))  # type: ignore[no-untyped-call]
    rows, _ = stream(seen.run, tmp_path)
    np.testing.assert_allclose(losses, rows.loss(), rtol=1e-5)
