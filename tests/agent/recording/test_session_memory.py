"""Watching keeps nothing alive and does not grow."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from tests.agent.training import stream


def _parts() -> tuple[torch.nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.amp.GradScaler("cpu", init_scale=16.0)


def _step(model: torch.nn.Module, optimizer: Any, scaler: Any) -> torch.Tensor:
    optimizer.zero_grad()
    loss: torch.Tensor = model(torch.ones(2, 4)).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


@pytest.mark.parametrize("spoil", [1.0, float("inf")])
def test_a_gradient_is_free_when_the_program_frees_it(spoil: float, tmp_path: Path) -> None:
    model, optimizer, scaler = _parts()
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    gc.disable()
    try:
        for _ in range(3):
            scaler.scale(model(torch.ones(2, 4)).square().mean() * spoil).backward()
            gradients = [weakref.ref(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
            scaler.step(optimizer)
            optimizer.zero_grad()
            assert [None] * 4 == [ref() for ref in gradients]
            scaler.update()
    finally:
        gc.enable()
        run.close()


def test_a_loss_is_free_when_the_program_forgets_it(tmp_path: Path) -> None:
    model, optimizer, scaler = _parts()
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    gc.disable()
    try:
        loss = weakref.ref(_step(model, optimizer, scaler))
        logged = torch.ones(1)
        run.log(metric=logged)
        value = weakref.ref(logged)
        del logged
        assert (None, None) == (loss(), value())
    finally:
        gc.enable()
        run.close()


@pytest.mark.parametrize("closed", [True, False])
def test_the_watched_objects_are_free_when_the_program_forgets_them(closed: bool, tmp_path: Path) -> None:
    model, optimizer, scaler = _parts()
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    for _ in range(3):
        _step(model, optimizer, scaler)
    if closed:
        run.close()
    alive = [weakref.ref(target) for target in (model, optimizer, scaler, *model.parameters())]
    del model, optimizer, scaler
    gc.collect()
    assert [None] * len(alive) == [ref() for ref in alive]
    run.close()
    assert [0, 1, 2] == stream(run.id, tmp_path)[0].steps.tolist()


def test_a_session_is_free_after_close(tmp_path: Path) -> None:
    model, optimizer, scaler = _parts()
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    session = weakref.ref(run._session)
    _step(model, optimizer, scaler)
    run.close()
    gc.collect()
    assert session() is None


def _resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _census(run: ammeter.Run) -> dict[str, int]:
    """What there is when no row is held back: of short steps some are, up to 97 where they are rested in."""
    assert run._session is not None
    run._session.fast_path.leave()
    run._session.rows.flush()
    gc.collect()
    return {
        "objects": len(gc.get_objects()),
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def test_three_thousand_steps_leave_nothing_behind_but_the_journal(tmp_path: Path) -> None:
    model, optimizer, scaler = _parts()
    run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)
    for _ in range(1500):
        _step(model, optimizer, scaler)
        run.log(metric=1.0)
    half, resident = _census(run), _resident()
    for _ in range(1500):
        _step(model, optimizer, scaler)
        run.log(metric=1.0)
    full, grown = _census(run), _resident() - resident
    run.close()
    assert (half["files"], half["threads"]) == (full["files"], full["threads"])
    assert full["objects"] - half["objects"] < 1000  # an object kept per step would be 1500; a first reading makes 400
    assert grown < 4 * 2**20  # a row kept per step would be more, and so many objects
    assert 3000 == len(stream(run.id, tmp_path)[0])
