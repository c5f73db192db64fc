"""Recorded gradient norms are those of their own step, before clipping, or there is none: against the program's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ammeter
from ammeter.wire.columns import measured
from tests.agent.training import events, stream

Norms = list[float]
STEPS = 12


@pytest.fixture(autouse=True)
def _every_norm_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter.recording.schedule.bucket.Bucket.allows", lambda _: True)


def _network(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))


def _norm(*models: torch.nn.Module) -> float:
    found = [parameter.grad for model in models for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.cat([gradient.reshape(-1) for gradient in found]).double().norm())


def _loss(model: torch.nn.Module, step: int, rows: int = 8) -> Any:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(rows, 6, generator=generator)
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def _recorded(run: ammeter.Run, folder: Path) -> Any:
    run.close()
    rows, frames = stream(run.id, folder)
    assert [] == events(frames, "probe.failed")
    return rows


Clip = Callable[[torch.nn.Module], Any]
CLIPS: dict[str, Clip | None] = {
    "none": None,
    "norm": lambda model: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1),
    "norm of a list": lambda model: torch.nn.utils.clip_grad_norm_(list(model.parameters()), 0.1),
    "value": lambda model: torch.nn.utils.clip_grad_value_(model.parameters(), 0.001),
}


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("late", [False, True])
def test_a_closure_that_goes_back_and_clips_inside_of_step_shows_its_own_norm(
    clip: str, kind: Any, late: bool, tmp_path: Path
) -> None:
    """As Lightning has it: forward, reset, backward and clip run inside of optimizer.step()."""
    model = _network()
    optimizer = kind(model.parameters(), lr=1e-2)
    if late:  # gradients of an earlier step lie there when watching begins
        _loss(model, 99).backward()
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Norms()
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            loss = _loss(model, step)
            optimizer.zero_grad()
            loss.backward()
            own.append(_norm(model))
            if change := CLIPS[clip]:
                change(model)
            return loss

        optimizer.step(closure)
    assert own == pytest.approx(_recorded(run, tmp_path).scalar("grad_norm").tolist(), rel=1e-5)


def test_micro_batches_before_the_closure_belong_to_its_step(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Norms()
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(3):
            (_loss(model, 10 * step + part) / 4).backward()

        def closure(step: int = step) -> Any:
            loss = _loss(model, 10 * step + 3) / 4
            loss.backward()
            own.append(_norm(model))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            return loss

        optimizer.step(closure)
    rows = _recorded(run, tmp_path)
    assert own == pytest.approx(rows.scalar("grad_norm").tolist(), rel=1e-5)
    assert [4.0] * STEPS == rows.scalar("micro_batches").tolist()


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_of_several_evaluations_the_step_is_that_of_the_first(search: Any, tmp_path: Path) -> None:
    model = _network()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5, line_search_fn=search)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    first = Norms()
    for step in range(STEPS):
        norms = Norms()

        def closure(step: int = step, norms: Norms = norms) -> Any:
            optimizer.zero_grad()
            loss = _loss(model, step)
            loss.backward()
            norms.append(_norm(model))
            return loss

        optimizer.step(closure)
        assert len(norms) > 1
        first.append(norms[0])
    assert first == pytest.approx(_recorded(run, tmp_path).scalar("grad_norm").tolist(), rel=1e-5)


def test_a_first_evaluation_that_nobody_saw_being_reset_shows_no_norm(tmp_path: Path) -> None:
    model = _network()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            for parameter in model.parameters():
                parameter.grad = None
            loss = _loss(model, step)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert not measured(_recorded(run, tmp_path).scalar("grad_norm")).any()


def test_gradients_that_a_closure_changes_by_hand_show_no_norm(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = _loss(model, step)
            loss.backward()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.1)
            return loss

        optimizer.step(closure)
    assert not measured(_recorded(run, tmp_path).scalar("grad_norm")).any()


@pytest.mark.parametrize("where", ["before backward", "behind backward", "behind unscale_", "behind the clip"])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_watching_that_begins_within_a_step_shows_no_norm_that_it_cannot_know(
    where: str, scaled: bool, clip: bool, tmp_path: Path
) -> None:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    run, own = None, Norms()

    def reached(place: str) -> None:
        nonlocal run
        if place == where and step == 2:
            run = ammeter.watch(model, optimizer, scaler, dir=tmp_path)

    for step in range(STEPS):
        optimizer.zero_grad()
        loss = _loss(model, step)
        reached("before backward")
        scaler.scale(loss).backward()
        own.append(_norm(model) / scaler.get_scale())
        reached("behind backward")
        if clip or where == "behind unscale_":
            scaler.unscale_(optimizer)
            reached("behind unscale_")
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        reached("behind the clip")
        scaler.step(optimizer)
        scaler.update()
    assert run is not None
    norms = _recorded(run, tmp_path).scalar("grad_norm")
    known = measured(norms)
    assert np.array(own[2:])[known] == pytest.approx(norms[known], rel=1e-4)
    assert known[1:].all()
    assert known[0] or where != "before backward"


def test_a_clip_of_scaled_gradients_is_read_unscaled_from_the_first_row_on(tmp_path: Path) -> None:
    model = _network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")
    run, own = ammeter.watch(model, optimizer, None, dir=tmp_path), Norms()
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(_loss(model, step)).backward()
        own.append(_norm(model) / scaler.get_scale())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
    assert own == pytest.approx(_recorded(run, tmp_path).scalar("grad_norm").tolist(), rel=1e-4)


def test_a_norm_is_of_all_that_stepped_or_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter([True, False] * 1000)
    monkeypatch.setattr("ammeter.recording.schedule.bucket.Bucket.allows", lambda _: next(turns))
    models = [_network(0), _network(1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    run, own = ammeter.watch(models, optimizers, dir=tmp_path), Norms()
    for step in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            _loss(model, step).backward()
            optimizer.step()
        own.append(_norm(*models))
    norms = _recorded(run, tmp_path).scalar("grad_norm")
    known = measured(norms)
    assert known.any()
    assert np.array(own)[known] == pytest.approx(norms[known], rel=1e-5)


def test_gradients_clipped_by_value_are_read_before(tmp_path: Path) -> None:
    models = [_network(0), _network(1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    run, own = ammeter.watch(models, optimizers, dir=tmp_path), Norms()
    for step in range(STEPS):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            _loss(model, step).backward()
        own.append(_norm(*models))
        for model, optimizer in zip(models, optimizers, strict=True):
            torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
    assert own == pytest.approx(_recorded(run, tmp_path).scalar("grad_norm").tolist(), rel=1e-5)
