"""A step past the scaler on changed gradients is a mistake, unless the change replaces unscale_()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.recording.schedule.budget import Governor
from tests.agent.healthy_programs.program import loss_of
from tests.agent.probes.call_order.mistakes import here
from tests.agent.training import Model, Seen, watching

SCALE = 4096.0
PERIOD_STEPS = 5

Change = Callable[[torch.Tensor], Any]


def averaged(grad: torch.Tensor) -> None:
    """As by an all-reduce with another rank, whose gradients are similar."""
    grad.mul_(0.5).add_(torch.randn_like(grad) * grad.std() * 0.3)


def decayed(grad: torch.Tensor) -> None:
    grad.add_(0.01 * torch.randn_like(grad))


def refused(grad: torch.Tensor) -> None:
    """A clip whose limit is not reached."""
    grad.mul_(1.0)


def divided(grad: torch.Tensor) -> None:
    grad.div_(SCALE)


def divided_and_noisy(grad: torch.Tensor) -> None:
    grad.div_(SCALE).add_(torch.randn_like(grad) * 1e-3)


def normalized(grad: torch.Tensor) -> None:
    grad.div_(grad.norm())


def signs(grad: torch.Tensor) -> None:
    grad.sign_()


def limited(grad: torch.Tensor) -> None:
    grad.clamp_(-1e-3, 1e-3)


def trained(folder: Path, change: Change, monkeypatch: pytest.MonkeyPatch) -> tuple[Seen, str]:
    """Steps past the scaler every few steps; returns what was recorded, and the line of the step."""
    monkeypatch.setattr(Governor, "follows", lambda self, urgent: True)
    torch.manual_seed(0)
    model, line = Model(), ""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    scales = torch.amp.GradScaler("cpu", init_scale=SCALE, growth_interval=1000)
    with watching(folder, model, optimizer, scales, budget=1.0) as seen:
        for step in range(3 * PERIOD_STEPS):
            optimizer.zero_grad()
            scales.scale(loss_of(model)).backward()
            for parameter in model.parameters() if step % PERIOD_STEPS == 1 else ():
                assert parameter.grad is not None
                change(parameter.grad)
            if step % PERIOD_STEPS == 1:
                optimizer.step()
                line = here()
            else:
                scales.step(optimizer)
                scales.update()
    return seen, line


@pytest.mark.parametrize("change", [averaged, decayed, refused])
def test_changed_gradients_that_are_still_scaled_are_a_mistake(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, line = trained(tmp_path, change, monkeypatch)
    finding = seen.findings()["gradients-not-unscaled"]
    assert finding.first_step == 1 + PERIOD_STEPS
    assert finding.evidence["scale"] == SCALE
    assert str(finding.caller).endswith(line)
    assert "but not divided them by the loss scale" in finding.cause


@pytest.mark.parametrize("change", [divided, divided_and_noisy, normalized, signs, limited])
def test_a_change_that_may_replace_unscale_is_silent(
    change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, _ = trained(tmp_path, change, monkeypatch)
    assert "gradients_not_unscaled" not in seen.usage()
