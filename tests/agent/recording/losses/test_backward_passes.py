"""The recorded loss is that of the backward pass, and reading its graph changes nothing."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import ammeter
from ammeter.torch_hooks import loss_graph, patch
from tests.agent.recording.losses.loss_programs import (
    STEPS,
    N,
    Numbers,
    batch,
    loss_columns,
    mean_loss,
    network,
    recorded_rows,
    squared_loss,
    summed_loss,
)


def test_a_single_backward_pass_is_of_the_loss_whatever_it_was_divided_by(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(60):
        optimizer.zero_grad()
        x, y = batch(step)
        loss = summed_loss(model(x), y) / 2
        loss.backward()
        optimizer.step()
        own.append(float(loss.detach()))
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


@pytest.mark.parametrize("start", [0, 20])
def test_a_loss_multiplied_with_the_scale_of_a_grad_scaler_is_recorded_without_it(start: int, tmp_path: Path) -> None:
    model = network()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu", growth_interval=25)
    scaler.scale(torch.ones(()))  # as a program must once, so that the scaler has a scale
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), Numbers()
    for step in range(60):
        optimizer.zero_grad()
        x, y = batch(step)
        loss = mean_loss(model(x), y)
        (scaler.scale(loss) if step < start else 0.5 * loss * scaler.get_scale()).backward()
        scaler.step(optimizer)
        scaler.update()
        own.append(float(loss.detach()) * (1.0 if step < start else 0.5))
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


class _Head(torch.nn.Module):
    """Computes the loss itself, as where the logits are too many to be kept."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out, self.calls = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 5), 0

    def forward(self, x: Any, y: Any) -> Any:
        self.calls += 1
        return summed_loss(self.out(self.norm(x)), y)


def _trained_in_a_checkpoint(folder: Path | None, divisor: float | torch.Tensor) -> tuple[int, list[float]]:
    """(calls of the head, the running mean of its norm)"""
    torch.manual_seed(0)
    head = _Head()
    optimizer = torch.optim.SGD(head.parameters(), lr=0.05)
    run = ammeter.watch(head, optimizer, dir=folder) if folder else None
    for step in range(STEPS):
        optimizer.zero_grad()
        for part in range(2):
            x, y = batch(10 * step + part)
            (checkpoint(head, x.requires_grad_(), y, use_reentrant=False) / divisor).backward()
        optimizer.step()
    if run and folder:
        recorded_rows(run, folder)
    mean: Any = head.norm.running_mean
    return head.calls, mean.tolist()


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("divisor", [8.0, torch.tensor(8.0)])
def test_a_block_that_is_computed_again_in_backward_is_so_no_more_often_for_us(
    tells: bool, divisor: float | torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_graph, "SAVED_TENSORS_EXPOSE_HOOKS", tells and loss_graph.SAVED_TENSORS_EXPOSE_HOOKS)
    monkeypatch.setattr(loss_graph, "_hooks_seen", False)
    before = patch.attached()
    assert _trained_in_a_checkpoint(None, divisor) == _trained_in_a_checkpoint(tmp_path, divisor)
    assert before == patch.attached()


def test_hooks_on_what_a_graph_saves_are_not_called_by_us(tmp_path: Path) -> None:
    called = []
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()

    def unpack(saved: Any) -> Any:
        called.append(torch._C._current_graph_task_id())
        return saved

    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, unpack):
            loss = summed_loss(model(x), y) / torch.tensor(8.0)
        loss.backward()
        optimizer.step()
        own.append(float(loss.detach()))
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)
    assert called
    assert -1 not in called


@pytest.mark.parametrize("criterion", [mean_loss, summed_loss])
def test_a_second_backward_that_raises_costs_no_loss(criterion: Callable[..., Any], tmp_path: Path) -> None:
    """As of a program that tries again when memory was short."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        loss = criterion(model(x), y) / 2
        loss.backward()
        if step == 5:
            with pytest.raises(RuntimeError, match="second time"):
                loss.backward()
        optimizer.step()
        own.append(float(loss.detach()))
    rows = recorded_rows(run, tmp_path)
    by_line = [rows.scalar(name).tolist() for name in loss_columns(rows) if name != "loss"]
    assert own[6:] in [pytest.approx(losses[6:], rel=1e-5) for losses in by_line]


def test_classes_that_the_program_makes_in_each_step_are_let_go(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, made = ammeter.watch(model, optimizer, dir=tmp_path), []
    for step in range(STEPS):

        class Same(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, x: Any) -> Any:
                return x.clone()

            @staticmethod
            def backward(_: Any, grad: Any) -> Any:
                return grad

        made.append(weakref.ref(Same))
        optimizer.zero_grad()
        x, y = batch(step)
        loss: Any = Same.apply(mean_loss(model(x), y))  # type: ignore[no-untyped-call]
        loss.backward()
        optimizer.step()
    del Same, loss
    recorded_rows(run, tmp_path)
    gc.collect()
    assert [] == [ref for ref in made if ref() is not None]


def test_the_last_micro_batch_may_have_a_line_of_its_own(tmp_path: Path) -> None:
    """As where only the last one synchronises gradients."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = batch(10 * step + part)
            loss = mean_loss(model(x), y)
            losses.append(float(loss.detach()))
            if part < N - 1:
                with nullcontext():
                    (loss / N).backward()
            else:
                (loss / N).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    rows = recorded_rows(run, tmp_path)
    assert ["loss"] == loss_columns(rows)
    assert own == pytest.approx(rows.scalar("loss").tolist(), rel=1e-5)


def test_several_roots_of_one_backward_are_one_loss(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        one, other = mean_loss(model(x), y), squared_loss(model(x), y)
        torch.autograd.backward([one, other])
        optimizer.step()
        own.append(float(one.detach() + other.detach()))
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


def test_evaluations_of_a_closure_behind_the_first_are_not_the_steps_loss(tmp_path: Path) -> None:
    model = network()
    optimizer: Any = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            x, y = batch(step)
            loss = mean_loss(model(x), y)
            loss.backward()
            return loss

        own.append(float(optimizer.step(closure).detach()))
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


def test_a_loss_that_the_program_logs_is_the_loss(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    run = ammeter.watch(model, optimizer, dir=tmp_path)
    for step in range(STEPS):
        x, y = batch(step)
        for _ in range(2):
            summed_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step)
    assert list(map(float, range(STEPS))) == recorded_rows(run, tmp_path).scalar("loss").tolist()


@pytest.mark.parametrize("closure", [False, True])
def test_every_short_step_has_its_loss_to_the_last_one(closure: bool, tmp_path: Path) -> None:
    model = network()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(400):

        def evaluate(step: int = step) -> Any:
            x, y = batch(step % 7)
            loss = mean_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            own.append(float(loss.detach()))
            return loss

        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()
    np.testing.assert_allclose(own, recorded_rows(run, tmp_path).scalar("loss"), rtol=1e-5)
