"""Norms of gradients that a program unscales itself are those that the optimizer receives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from ammeter.probes.gradients.unscaled_by_hand import is_divided
from ammeter.probes.own_scaling.samples import HostSample
from tests.agent.healthy_programs.program import loss_of
from tests.agent.training import Model, events, stream

SCALE = 4096.0
STEPS = 24


@pytest.fixture(autouse=True)
def _every_norm_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter.recording.schedule.bucket.Bucket.allows", lambda _: True)


def _norm(*models: torch.nn.Module) -> float:
    found = [parameter.grad for model in models for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.cat([gradient.reshape(-1) for gradient in found]).double().norm())


def _recorded(run: ammeter.Run, folder: Path) -> list[float]:
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    norms: list[float] = rows.scalar("grad_norm").tolist()
    return norms


def _unscale(model: torch.nn.Module, noise: float = 0.0) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        parameter.grad.div_(SCALE)
        if noise:
            parameter.grad.add_(torch.randn_like(parameter.grad), alpha=noise)


def _parts(count: int) -> tuple[list[Model], list[Any], torch.amp.GradScaler]:
    torch.manual_seed(0)
    models = [Model() for _ in range(count)]
    optimizers: list[Any] = [torch.optim.SGD(model.parameters(), lr=1e-2) for model in models]
    return models, optimizers, torch.amp.GradScaler("cpu", init_scale=SCALE)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("clips", [False, True])
def test_the_norm_is_that_after_the_division_by_hand(noise: float, passes: int, clips: bool, tmp_path: Path) -> None:
    (model,), (optimizer,), scaler = _parts(1)
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), list[float]()
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            scaler.scale(loss_of(model) / passes).backward()
        _unscale(model, noise)
        own.append(_norm(model))
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scaler.update(SCALE)
    assert own == pytest.approx(_recorded(run, tmp_path), rel=1e-5)


@pytest.mark.parametrize("divides", [True, False])
def test_the_norm_of_assigned_gradients_is_that_after_their_division(divides: bool, tmp_path: Path) -> None:
    (model,), (optimizer,), scaler = _parts(1)
    optimizer.param_groups[0]["lr"] = 1e-2 if divides else 1e-6
    run, own, weights = ammeter.watch(model, optimizer, scaler, dir=tmp_path), list[float](), list(model.parameters())
    for _ in range(STEPS):
        gradients = torch.autograd.grad(scaler.scale(loss_of(model)), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient / SCALE if divides else gradient
        own.append(_norm(model) / (1 if divides else SCALE))
        optimizer.step()
        scaler.update(SCALE)
    assert own == pytest.approx(_recorded(run, tmp_path), rel=1e-5)


def test_gradients_that_stay_scaled_have_the_norm_without_the_scale(tmp_path: Path) -> None:
    (model,), (optimizer,), scaler = _parts(1)
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), list[float]()
    for group in optimizer.param_groups:
        group["lr"] = 1e-6
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        own.append(_norm(model) / SCALE)
        optimizer.step()
    assert own == pytest.approx(_recorded(run, tmp_path), rel=1e-5)


def test_steps_with_and_without_the_scaler_have_their_own_norms(tmp_path: Path) -> None:
    (model,), (optimizer,), scaler = _parts(1)
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), list[float]()
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        own.append(_norm(model) / SCALE)
        if step % 2:
            scaler.step(optimizer)
            scaler.update()
        else:
            _unscale(model)
            optimizer.step()
            scaler.update(SCALE)
    assert own == pytest.approx(_recorded(run, tmp_path), rel=1e-5)


def test_a_division_before_the_backward_of_another_optimizer_is_seen(tmp_path: Path) -> None:
    models, optimizers, scaler = _parts(2)
    run, own = ammeter.watch(torch.nn.ModuleList(models), optimizers, scaler, dir=tmp_path), list[float]()
    for _ in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            _unscale(model)
        own.append(_norm(*models))
        for optimizer in optimizers:
            optimizer.step()
        scaler.update(SCALE)
    assert own == pytest.approx(_recorded(run, tmp_path), rel=1e-5)


def test_the_weights_of_such_a_program_stay_bit_identical(tmp_path: Path) -> None:
    def trained(is_watched: bool) -> bytes:
        (model,), (optimizer,), scaler = _parts(1)
        run = ammeter.watch(model, optimizer, scaler, dir=tmp_path) if is_watched else None
        for _ in range(STEPS):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            _unscale(model, 0.01)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            scaler.update(SCALE)
        if run:
            run.close()
        return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())

    assert trained(False) == trained(True)


@pytest.mark.parametrize(
    ("ratios", "scale", "expected"),
    [
        ([1 / 4096] * 8, 4096.0, True),
        ([0.1 / 4096] * 8, 4096.0, True),  # and a clip
        ([1 / 32] * 8, 65536.0, False),  # an average of many passes
        ([0.7, 0.2, 0.9, 1.4, 0.4, 0.8], 65536.0, False),  # an average with other ranks
        ([0.04, 0.01, 0.002, 0.05, 0.09, 0.03], 4096.0, True),  # and noise
        ([1.0] * 8, 1.0, False),
        ([float("nan")] * 8, 4096.0, None),
    ],
)
def test_ratios_show_a_division(ratios: list[float], scale: float, expected: bool | None) -> None:
    produced, received = HostSample([2.0] * len(ratios)), HostSample([2.0 * ratio for ratio in ratios])
    assert expected is is_divided(produced, received, scale)
