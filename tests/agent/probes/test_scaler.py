"""Every scaler's scale, growth and skips, for one or several, on the host or late."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.agent.training import Model, events, stream, watching


def scaler(scale: float, **options: Any) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale, **options)


def step(model: Any, optimizer: Any, scales: Any, bad: bool = False) -> None:
    optimizer.zero_grad()
    scales.scale(model(torch.randn(8, 12)).square().mean() * (float("inf") if bad else 1)).backward()
    scales.step(optimizer)
    scales.update()


def moves(frames: list[Any], name: str) -> list[tuple[Any, ...]]:
    return [
        (event.step, event.data["from"], event.data["to"], event.data.get("scaler")) for event in events(frames, name)
    ]


def test_one_scaler_needs_no_number(tmp_path: Path) -> None:
    model, scales = Model(), scaler(64.0, growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for at in range(6):
            step(model, optimizer, scales, bad=at == 3)
    rows, frames = stream(seen.run, tmp_path)
    assert [(1, 64.0, 128.0, None), (5, 64.0, 128.0, None)] == moves(frames, "scaler.growth")
    assert [(3, 128.0, 64.0, None)] == moves(frames, "scaler.backoff")
    assert [64.0, 64.0, 128.0, 128.0, 64.0, 64.0] == rows.scalar("scale").tolist()
    assert [0.0, 1.0, 0.0, 1.0, 0.0, 1.0] == rows.scalar("growth_tracker").tolist()
    assert [0.0, 0.0, 0.0, 1.0, 0.0, 0.0] == rows.scalar("found_inf").tolist()
    assert [{"scale": 128.0, "consecutive": 1}] == [event.data for event in events(frames, "step.skipped")]
    assert [{"enabled": True, "device": "cpu", "scale": 64.0}] == [
        event.data for event in events(frames, "scaler.seen")
    ]


@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
def test_of_two_scalers_the_columns_have_the_smaller_scale_and_events_say_which(given: bool, tmp_path: Path) -> None:
    models, scales = [Model(), Model()], [scaler(1024.0, growth_interval=3), scaler(64.0, growth_interval=2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-4) for model in models]
    with watching(tmp_path, models, optimizers, scales if given else None) as seen:
        for at in range(6):
            for number in (0, 1):
                step(models[number], optimizers[number], scales[number], bad=(at, number) == (4, 0))
    rows, frames = stream(seen.run, tmp_path)
    if given:
        assert [64.0, 64.0, 128.0, 128.0, 256.0, 256.0] == rows.scalar("scale").tolist()
        assert [(1, 64.0, 128.0, 1), (2, 1024.0, 2048.0, 0), (3, 128.0, 256.0, 1), (5, 256.0, 512.0, 1)] == moves(
            frames, "scaler.growth"
        )
        assert [(4, 2048.0, 1024.0, 0)] == moves(frames, "scaler.backoff")
        assert [0.0] * 4 + [1.0, 0.0] == rows.scalar("found_inf").tolist()
    assert [2048.0] == [event.data["scale"] for event in events(frames, "step.skipped")]
    assert 2 == len(events(frames, "scaler.seen"))
    assert 1.0 == float(np.nansum(rows.scalar("skipped")))
    assert 11.0 == float(np.nansum(rows.scalar("applied")))


@pytest.mark.parametrize("fused", [False, True], ids=["on the host", "late"])
def test_two_optimizers_of_one_scaler_are_counted_each(fused: bool, tmp_path: Path) -> None:
    models, scales = [Model(), Model()], scaler(64.0)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-4, fused=fused) for model in models]
    with watching(tmp_path, models, optimizers, scales) as seen:
        for at in range(5):
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.zero_grad()
                bad = at == 2 and model is models[1]
                scales.scale(model(torch.randn(8, 12)).square().mean() * (float("nan") if bad else 1)).backward()
                scales.step(optimizer)
            scales.update()
    rows, _ = stream(seen.run, tmp_path)
    assert [2.0, 2.0, 1.0, 2.0, 2.0] == rows.scalar("applied").tolist()
    assert [0.0, 0.0, 1.0, 0.0, 0.0] == rows.scalar("skipped").tolist()
    assert [0.0, 0.0, 1.0, 0.0, 0.0] == rows.scalar("found_inf").tolist()


def test_the_program_is_never_asked_for_its_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, scales = Model(), scaler(64.0, growth_interval=2)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    monkeypatch.setattr(torch.amp.GradScaler, "get_scale", lambda self: 1 / 0)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for at in range(4):
            step(model, optimizer, scales, bad=at == 2)
    rows, frames = stream(seen.run, tmp_path)
    assert [64.0, 64.0, 128.0, 64.0] == rows.scalar("scale").tolist()
    assert [] == events(frames, "probe.failed")


@pytest.mark.parametrize("trained", [False, True], ids=["before its first step", "in the middle of a run"])
def test_a_scaler_that_is_restored_is_told_with_its_scale(trained: bool, tmp_path: Path) -> None:
    model, scales, state = Model(), scaler(64.0), scaler(4096.0).state_dict()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        if trained:
            step(model, optimizer, scales)
        scales.load_state_dict(state)
        step(model, optimizer, scales)
    rows, frames = stream(seen.run, tmp_path)
    assert [{"scale": 4096.0}] == [event.data for event in events(frames, "scaler.restored")]
    assert 4096.0 == rows.scalar("scale")[-1]


def test_a_scale_set_by_hand_is_a_move_like_any_other(tmp_path: Path) -> None:
    model, scales = Model(), scaler(64.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        step(model, optimizer, scales)
        optimizer.zero_grad()
        scales.scale(model(torch.randn(8, 12)).square().mean()).backward()
        scales.step(optimizer)
        scales.update(8.0)
    _, frames = stream(seen.run, tmp_path)
    assert [(1, 64.0, 8.0, None)] == moves(frames, "scaler.backoff")


@pytest.mark.parametrize("factor", [4.0, 0.25])
@pytest.mark.parametrize("at_end", [True, False], ids=["at the end of the step", "at its beginning"])
def test_the_scale_of_a_step_is_the_one_that_it_used(at_end: bool, factor: float, tmp_path: Path) -> None:
    model, scales, used = Model(), scaler(64.0), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales) as seen:
        for at in range(6):
            if at % 2 and not at_end:
                scales.update(scales.get_scale() * factor)
            used.append(scales.get_scale())
            step(model, optimizer, scales)
            if at % 2 and at_end:
                scales.update(scales.get_scale() * factor)
    rows, _ = stream(seen.run, tmp_path)
    assert used == rows.scalar("scale").tolist()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
@pytest.mark.usefixtures("alone")
def test_the_scaler_of_fsdp_is_one(given: bool, tmp_path: Path) -> None:
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    assert "torch.distributed.fsdp.sharded_grad_scaler" in sys.modules
    model = Model()
    scales: Any = ShardedGradScaler("cpu", init_scale=64.0, growth_interval=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with watching(tmp_path, model, optimizer, scales if given else None) as seen:
        for at in range(4):
            step(model, optimizer, scales, bad=at == 3)
    rows, frames = stream(seen.run, tmp_path)
    assert [64.0, 64.0, 128.0, 128.0] == rows.scalar("scale").tolist()
    assert [0.0, 0.0, 0.0, 1.0] == rows.scalar("skipped").tolist()
    assert [(1, 64.0, 128.0, None)] == moves(frames, "scaler.growth")
    assert {} == seen.usage()
