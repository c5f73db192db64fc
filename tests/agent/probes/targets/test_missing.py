"""Micro-batches without targets are counted, whatever keeps their NaN out of the loss."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.agent.training import watching

IGNORED = -100
MICRO_BATCHES = 4
STEPS = 60

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def replaced(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets).nan_to_num()


def smoothed(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits, targets, label_smoothing=0.1).nan_to_num()


def clamped(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    kept = (targets != IGNORED).sum().clamp(min=1)
    return functional.cross_entropy(logits, targets, reduction="sum") / kept


def per_target(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    kept = (targets != IGNORED).sum().clamp(min=1)
    return functional.cross_entropy(logits, targets, reduction="none").sum() / kept


def masked(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mask = targets != IGNORED
    losses = functional.cross_entropy(logits, targets.clamp(min=0), reduction="none")
    return (losses * mask).sum() / mask.sum().clamp(min=1)


def chosen(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    loss = functional.cross_entropy(logits, targets)
    return torch.where(loss.isnan(), torch.zeros_like(loss), loss)


def of_two_heads(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return replaced(logits, targets) + 0.5 * clamped(logits * 2, targets)


def with_another_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss of two tasks, of which one has no target in some batches."""
    return clamped(logits, targets) + (logits.sum() * 0).square()


def weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Reinforcement learning: the advantages of a group are all zero."""
    advantages = (targets != IGNORED).float()
    return (functional.cross_entropy(logits, targets.clamp(min=0), reduction="none") * advantages).mean()


def hinge(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A margin that each sample keeps."""
    return ((targets != IGNORED).float() - 1 + logits[:, 0] * 0).relu().mean()


def trained(folder: Path, loss_of: Loss, every: int = 5, **options: Any) -> Any:
    """Trains with a batch without targets at each of these micro-batches."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=options.pop("scaled", False))
    with watching(folder, model, optimizer, scaler, **options) as seen:
        for number in range(STEPS * MICRO_BATCHES):
            targets = torch.randint(3, (6,))
            if number % every == every - 1:
                targets[:] = IGNORED
            loss = loss_of(model(torch.randn(6, 5)), targets) / MICRO_BATCHES
            torch.autograd.backward(scaler.scale(loss))
            if number % MICRO_BATCHES == MICRO_BATCHES - 1:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert [] == seen.events("probe.failed")
    return seen


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("loss_of", [replaced, smoothed, clamped, per_target, masked, chosen, of_two_heads])
def test_each_micro_batch_without_targets_is_counted(loss_of: Loss, scaled: bool, tmp_path: Path) -> None:
    last = trained(tmp_path, loss_of, scaled=scaled).events("targets.missing")[-1]
    assert 32 == last.data["count"]
    assert 32 / 160 == pytest.approx(last.data["count"] / last.data["of"], rel=0.05)
    assert 1 == last.data["first_step"]
    assert "test_missing.py:" in last.data["caller"]


def test_the_share_is_the_one_finding(tmp_path: Path) -> None:
    assert ["masked-labels"] == list(trained(tmp_path, clamped).findings())


@pytest.mark.parametrize("loss_of", [with_another_loss, weighted, hinge])
def test_a_zero_loss_of_another_kind_is_not_counted(loss_of: Loss, tmp_path: Path) -> None:
    seen = trained(tmp_path, loss_of)
    assert [] == seen.events("targets.missing")
    assert "masked-labels" not in seen.findings()


def test_one_in_two_hundred_is_silent(tmp_path: Path) -> None:
    assert "masked-labels" not in trained(tmp_path, replaced, every=200).findings()


def given_up(folder: Path, every: int, extra: int = 0) -> Any:
    """Trains, omits backward() where the loss is NaN, and calls the model more often than it needs."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(folder, model, optimizer, budget=1.0) as seen:
        for step in range(60):
            targets = torch.randint(3, (6,))
            if step % every == every - 1:
                targets[:] = IGNORED
            for _ in range(extra):
                model(torch.randn(6, 5))
            loss = functional.cross_entropy(model(torch.randn(6, 5)), targets)
            if not torch.isfinite(loss):
                continue
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    assert [] == seen.events("probe.failed")
    return seen


def test_a_loss_that_is_given_up_before_backward_is_found(tmp_path: Path) -> None:
    seen = given_up(tmp_path, every=7)
    last = seen.events("targets.missing")[-1].data
    assert last["count"] == last["searched"] >= 4
    assert last["nan"]
    assert {"masked-labels"} == set(seen.findings())


def test_forward_passes_that_a_step_needs_are_not_searched(tmp_path: Path) -> None:
    assert [] == given_up(tmp_path, every=7, extra=1).events("targets.missing")
    assert [] == given_up(tmp_path, every=100).events("targets.missing")
