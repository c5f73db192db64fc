"""What begins late is told as well, where the budget has only some steps followed call by call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from ammeter.recording.schedule.attention import FIRST_STRETCH_STEPS, MAX_INTERVAL_STEPS, STRETCH_STEPS
from tests.agent.training import Seen, watching

BEGINS = FIRST_STRETCH_STEPS + 23


def train(folder: Path, mistake: str, steps: int, preset: str) -> Seen:
    torch.manual_seed(0)
    model, scales = torch.nn.Linear(12, 2), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    with watching(folder, model, optimizer, scales, preset=preset) as seen:
        for step in range(steps):
            late = step >= BEGINS
            if not (late and mistake == "not reset"):
                optimizer.zero_grad()
            loss = model(torch.randn(8, 12)).square().mean()
            (loss if late and mistake == "not scaled" else scales.scale(loss)).backward()
            scales.step(optimizer)
            scales.update()
    return seen


KINDS = {"not scaled": "loss_not_scaled", "not reset": "gradients_not_reset"}


@pytest.mark.parametrize("mistake", KINDS)
def test_where_every_step_is_followed_a_late_mistake_is_told_at_once(mistake: str, tmp_path: Path) -> None:
    seen = train(tmp_path, mistake, BEGINS + 4, "full")
    assert [KINDS[mistake]] == list(seen.usage())
    assert [BEGINS] == [event.step for event in seen.events(f"usage.{KINDS[mistake]}")]


@pytest.mark.parametrize("mistake", KINDS)
def test_a_late_mistake_is_told_in_the_next_stretch_that_is_followed(mistake: str, tmp_path: Path) -> None:
    seen = train(tmp_path, mistake, BEGINS + MAX_INTERVAL_STEPS + 2 * STRETCH_STEPS, "default")
    without_autocast = {"not_as_asked"}  # the scaler of these programs has none, which is reported after 200 steps
    assert [KINDS[mistake]] == [name for name in seen.usage() if name not in without_autocast]
    assert BEGINS <= seen.events(f"usage.{KINDS[mistake]}")[0].step <= BEGINS + MAX_INTERVAL_STEPS + STRETCH_STEPS


class Asked(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__qualname__", repr(func)))
        return func(*args, **(kwargs or {}))


def faulty(model: Any, optimizer: Any, scales: Any) -> None:
    """Gradients that are never reset, of losses that are not scaled or by torch.autograd.grad, in half precision."""
    parameters = list(model.parameters())
    for step in range(8):
        loss = model(torch.ones(4, 12)).float().square().mean()
        if step % 2:
            scales.scale(loss)
            for at, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                at.grad = gradient
        else:
            (scales.scale(loss) + loss).backward()
        torch.nn.utils.clip_grad_value_(parameters, 1.0)
        scales.step(optimizer)
        scales.update()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_function_mode_of_a_program_full_of_mistakes_sees_nothing_of_the_probes(dtype: Any, tmp_path: Path) -> None:
    heard, weights = [], []
    for watched in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.BatchNorm1d(12), torch.nn.Linear(12, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        model[0].to(dtype), model[1].to(dtype), model[2].to(dtype)
        scales = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        with Asked() as mode, torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
            if watched:
                with watching(tmp_path, model, optimizer, scales) as seen:
                    mode.calls.clear()
                    faulty(model, optimizer, scales)
                    heard.append(list(mode.calls))
            else:
                mode.calls.clear()
                faulty(model, optimizer, scales)
                heard.append(list(mode.calls))
        weights.append([parameter.tolist() for parameter in model.parameters()])
    assert "loss_not_scaled" in seen.usage()
    assert heard[0] == heard[1]
    assert weights[0] == weights[1]
