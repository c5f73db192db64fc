"""A finding is the same however the program spells what it does, and whether or not its calls are observed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.recording.unobserved.test_same_rows import BACKWARD, SCALE, STEP, UPDATE, Direct, engine
from tests.agent.training import watching

Clip = Callable[[list[torch.Tensor]], None]

STEPS = 40


def network() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


@pytest.mark.parametrize(
    ("optimizer", "backward"),
    [
        (torch.optim.SGD, torch.Tensor.backward),
        (torch.optim.SGD, BACKWARD),
        (torch.optim.SGD, engine),
        (Direct, torch.Tensor.backward),
    ],
)
def test_gradients_that_are_never_reset(tmp_path: Path, optimizer: Any, backward: Any) -> None:
    model = network()
    chosen = optimizer(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, chosen, budget=1.0) as seen:
        for _ in range(STEPS):
            backward(model(torch.randn(8, 4)).square().mean())
            chosen.step()
    assert "gradients-not-reset" in seen.findings()


def by_torch(weights: list[torch.Tensor]) -> None:
    torch.nn.utils.clip_grad_norm_(weights, 1.0)


def by_hand(weights: list[torch.Tensor]) -> None:
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    torch._foreach_mul_(gradients, torch.clamp(1.0 / norm, max=1.0))


@pytest.mark.parametrize("clip", [by_torch, by_hand])
@pytest.mark.parametrize(
    "calls", [{}, {"scale": SCALE}, {"step": STEP}, {"update": UPDATE}], ids=lambda calls: ", ".join(calls) or "all"
)
def test_a_clip_of_scaled_gradients(tmp_path: Path, clip: Clip, calls: dict[str, Any]) -> None:
    kind = torch.amp.GradScaler
    model, scaler = network(), kind("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watching(tmp_path, model, optimizer, scaler, budget=1.0) as seen:
        for _ in range(STEPS):
            optimizer.zero_grad()
            calls.get("scale", kind.scale)(scaler, model(torch.randn(8, 4)).square().mean()).backward()
            clip(list(model.parameters()))
            calls.get("step", kind.step)(scaler, optimizer)
            calls.get("update", kind.update)(scaler)
    assert "clip-before-unscale" in seen.findings()


@pytest.mark.parametrize("name", ["MultiHeadAttention", "Blend"])
@pytest.mark.parametrize("is_passed_in", [False, True])
def test_a_row_that_is_masked_as_a_whole(tmp_path: Path, name: str, is_passed_in: bool) -> None:
    def hidden(x: torch.Tensor) -> torch.Tensor:
        return (x[..., 0] > 5).unsqueeze(1).expand(-1, x.shape[1], -1)

    def forward(self: Any, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        scores = self.query(x) @ x.transpose(1, 2)
        weights = scores.masked_fill(hidden(x) if mask is None else mask, float("-inf")).softmax(-1)
        mixed: torch.Tensor = (weights @ x).mean(1)
        return mixed

    def create(self: Any) -> None:
        torch.nn.Module.__init__(self)
        self.query = torch.nn.Linear(4, 4)

    torch.manual_seed(2)
    model = type(name, (torch.nn.Module,), {"__init__": create, "forward": forward})()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watching(tmp_path, model, optimizer, budget=1.0) as seen:
        for step in range(16):
            x = torch.randn(2, 3, 4)
            x[1, :, 0] = 9.0 if step == 12 else 0.0
            optimizer.zero_grad()
            output = model(x, hidden(x)) if is_passed_in else model(x)
            output.square().mean().backward()
            optimizer.step()
    assert "masked-row-nan" in seen.findings()
