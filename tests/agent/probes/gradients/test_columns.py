"""The columns of the gradients: the same numbers whichever reader took them, and those that float64 gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.probes.gradients import reading
from ammeter.tensors import native
from ammeter.tensors.exponents import BINS, LOWEST
from ammeter.wire.columns import View, measured
from tests.agent.training import Model, events, stream


def train(folder: Path, scale: float = 2.0**10, steps: int = 3, **spoil: float) -> tuple[View, list[Any], list[Any]]:
    """(rows, frames, unscaled float64 gradients of each step) of a float16 run."""
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    run = ammeter.watch(model, optimizer, scaler, dir=folder, preset="full")
    kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(16, 12)).square().mean()
        scaler.scale(loss).backward()
        for name, value in spoil.items():
            gradient = model.get_parameter(name.replace("_", ".")).grad
            assert gradient is not None
            gradient.view(-1)[0] = value
        kept.append(
            [parameter.grad.double().numpy() / scale for parameter in model.parameters() if parameter.grad is not None]
        )
        scaler.step(optimizer)
        scaler.update(scale)
    run.close()
    return (*stream(run.id, folder), kept)


@pytest.fixture(params=["compiled", "plain", "device"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(native, "MISSING", "for this test")
    if request.param == "device":
        monkeypatch.setattr(reading, "HOST", "none")
    return str(request.param)


def test_every_column_of_a_full_reading_agrees_with_float64(reader: str, tmp_path: Path) -> None:
    rows, frames, kept = train(tmp_path)
    assert [] == events(frames, "probe.failed")
    for at, step in enumerate(kept):
        norms = [float(np.sqrt((gradient**2).sum())) for gradient in step]
        assert norms == pytest.approx(rows.stat("grad.norm")[:, at].tolist(), rel=1e-6)
        assert [float(np.abs(gradient).max()) for gradient in step] == pytest.approx(
            rows.stat("grad.absmax")[:, at].tolist()
        )
        assert [int((gradient == 0).sum()) for gradient in step] == rows.stat("grad.zeros")[:, at].astype(int).tolist()
        small = [int(((gradient != 0) & (np.abs(gradient) * 2.0**10 < 2.0**-14)).sum()) for gradient in step]
        assert small == rows.stat("grad.subnormals")[:, at].astype(int).tolist()
        assert float(np.sqrt(np.square(norms).sum())) == pytest.approx(float(rows.scalar("grad_norm")[at]), rel=1e-6)
        assert 0 == rows.scalar("grad_nonfinite")[at]
    assert not measured(rows.stat("grad.nans")).any()


def test_elements_that_are_not_finite_are_counted_where_they_are(reader: str, tmp_path: Path) -> None:
    rows, frames, _ = train(tmp_path, first_weight=float("nan"), last_bias=float("inf"))
    names = [tensor.name for tensor in rows.schema.tensors]
    bad = {"first.weight": (1, 0), "last.bias": (0, 1)}
    for at in range(len(rows)):
        for name, (nans, infs) in bad.items():
            assert nans == rows.stat("grad.nans")[names.index(name), at]
            assert infs == rows.stat("grad.infs")[names.index(name), at]
        assert 2 == measured(rows.stat("grad.nans")[:, at]).sum()
        assert 2 == rows.scalar("grad_nonfinite")[at]
    data = events(frames, "gradient.nonfinite")[0].data
    assert [{"tensor": "first.weight", "nans": 1, "infs": 0}, {"tensor": "last.bias", "nans": 0, "infs": 1}] == (
        data["tensors"]
    )


def test_the_exponents_of_the_scaled_gradients_are_told_now_and_then(reader: str, tmp_path: Path) -> None:
    _, frames, kept = train(tmp_path, steps=reading.READINGS_PER_SPECTRUM + 1)
    emitted = events(frames, "gradient.spectrum")
    assert [0, reading.READINGS_PER_SPECTRUM] == [event.step for event in emitted]
    assert (LOWEST, 2.0**10) == (emitted[0].data["lowest"], emitted[0].data["scale"])
    assert BINS == len(emitted[0].data["counts"])
    if reader != "device":  # without a GPU no kernel runs, and plain torch makes no histogram there
        every = np.concatenate([gradient.reshape(-1) for gradient in kept[0]]) * 2.0**10
        at = np.clip(np.floor(np.log2(np.abs(every[every != 0]))), LOWEST, 16).astype(int) - LOWEST
        assert np.bincount(at, minlength=BINS - 2).tolist() == emitted[0].data["counts"][: BINS - 2]
        assert int((every == 0).sum()) == emitted[0].data["counts"][BINS - 2]
