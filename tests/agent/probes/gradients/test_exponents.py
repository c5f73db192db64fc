"""The exponents of each gradient and weight: what is counted, how often, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import ammeter
from ammeter.probes.gradients import exponents, reading
from ammeter.tensors import native
from ammeter.whatif.cells import PER_EXPONENT, count
from ammeter.wire.frames import Event
from tests.agent.training import events, stream

Kept = list[dict[str, torch.Tensor]]


def train(
    folder: Path, model: nn.Module, steps: int = 12, scale: float = 2.0**10, **options: Any
) -> tuple[list[Event], Kept]:
    """(events, scaled gradients of each step) of a float16 run in which every gradient is read completely."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
    run = ammeter.watch(model, optimizer, scaler, dir=folder, **{"preset": "full", **options})
    kept: Kept = []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = model(torch.randn(16, 12)).square().mean()
        scaler.scale(loss).backward()
        kept.append({name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None})
        scaler.step(optimizer)
        scaler.update()
    run.close()
    frames = stream(run.id, folder)[1]
    assert [] == events(frames, "probe.failed")
    return events(frames, "tensor.exponents"), kept


def network(width: int = 24) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3))


@pytest.fixture(params=["compiled", "plain", "device"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "plain":
        monkeypatch.setattr(native, "MISSING", "for this test")
    if request.param == "device":
        monkeypatch.setattr(reading, "HOST", "none")
    return str(request.param)


def test_every_element_of_small_gradients_is_counted_as_it_was_scaled(reader: str, tmp_path: Path) -> None:
    written, kept = train(tmp_path, network())
    gradients = [event for event in written if event.data["of"] == "gradient"]
    assert gradients
    for event in gradients:
        assert 2.0**10 == event.data["scale"]
        assert list(kept[event.step]) == [entry["tensor"] for entry in event.data["tensors"]]
        for entry in event.data["tensors"]:
            gradient = kept[event.step][entry["tensor"]].reshape(-1)
            (expected,) = count(gradient.numpy(), [len(gradient)])
            assert expected._asdict() == {key: entry[key] for key in ("lowest", "counts", "zeros", "nonfinite")}
            assert len(gradient) == entry["elements"] == sum(entry["counts"]) + entry["zeros"]
            assert float(gradient.abs().max()) == entry["absmax"]


def test_weights_are_counted_beside_the_gradients(tmp_path: Path) -> None:
    model = network()
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    written, _ = train(tmp_path, model, steps=3)
    (event,) = [event for event in written if event.data["of"] == "weight"]
    assert (1.0, list(before)) == (event.data["scale"], [entry["tensor"] for entry in event.data["tensors"]])
    sizes = [entry["absmax"] for entry in event.data["tensors"]]
    assert sizes == pytest.approx([float(weight.abs().max()) for weight in before.values()], rel=0.1)


def test_rounds_become_rarer_as_a_run_becomes_older(tmp_path: Path) -> None:
    written, _ = train(tmp_path, network(), steps=200)
    steps = sorted({event.step for event in written})
    assert [2, 5, 11, 23, 47, 95, 191] == steps
    assert {"gradient": 7, "weight": 7} == {
        of: len([event for event in written if event.data["of"] == of]) for of in ("gradient", "weight")
    }


def test_a_round_over_many_elements_takes_several_readings(tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 200), *(nn.Linear(200, 200) for _ in range(5)), nn.Linear(200, 3))
    written, _ = train(tmp_path, model, steps=8)
    names = [(event.data["of"], entry["tensor"]) for event in written for entry in event.data["tensors"]]
    assert 2 * 14 == len(names) == len(set(names))
    read = dict.fromkeys({event.step for event in written}, 0)
    for event in written:
        read[event.step] += sum(sum(entry["counts"]) + entry["zeros"] for entry in event.data["tensors"])
    assert 4 == len(read)
    assert max(read.values()) <= 1.6 * exponents.MAX_ELEMENTS


def test_many_small_tensors_take_several_readings(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(12, 12), *(nn.LayerNorm(12) for _ in range(40)), nn.Linear(12, 3))
    written, _ = train(tmp_path, model, steps=9)
    assert max(len(event.data["tensors"]) for event in written) <= exponents.MAX_TENSORS
    for of in ("gradient", "weight"):
        names = [entry["tensor"] for event in written if event.data["of"] == of for entry in event.data["tensors"]]
        assert 84 == len(names) == len(set(names))


def test_an_overflowed_step_is_not_counted(tmp_path: Path) -> None:
    written, _ = train(tmp_path, network(), steps=5, scale=2.0**60)
    assert [] == [event for event in written if any(entry["nonfinite"] for entry in event.data["tensors"])]


def test_without_full_readings_nothing_is_counted(tmp_path: Path) -> None:
    assert [] == train(tmp_path, network(), preset="light")[0]


def test_an_entry_has_the_exponents_that_are_there(tmp_path: Path) -> None:
    written, _ = train(tmp_path, network(512), steps=4)
    for entry in [entry for event in written for entry in event.data["tensors"] if entry["counts"]]:
        rows = np.array(entry["counts"]).reshape(-1, PER_EXPONENT)
        assert rows[0].any()
        assert rows[-1].any()
        assert len(rows) <= 45
