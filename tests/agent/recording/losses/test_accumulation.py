"""The recorded loss of accumulated gradients is the loss of the batch, or none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ammeter
from tests.agent.recording.losses.loss_programs import (
    CRITERIA,
    STEPS,
    N,
    Numbers,
    batch,
    loss_columns,
    mean_loss,
    network,
    recorded_rows,
    summed_loss,
)

DIVISIONS: dict[str, Callable[[Any], Any]] = {
    "not at all": lambda loss: loss,
    "by a number": lambda loss: loss / N,
    "by a factor": lambda loss: loss * (1 / N),
    "by a factor before it": lambda loss: (1 / N) * loss,
    "by a tensor": lambda loss: loss / torch.tensor(float(N)),
    "in place": lambda loss: (loss * 1).div_(N),
    "in two steps": lambda loss: (loss / 2 * 4) / 8,
    "each summand": lambda loss: 0.3 * loss / N + 0.7 * loss / N,
    "and reshaped": lambda loss: (loss / N).reshape(1).squeeze().float(),
}


PAIRS = [
    (division, criterion, (row + column) % 2 == 1)
    for row, division in enumerate(DIVISIONS)
    for column, criterion in enumerate(CRITERIA)
]
"""Every division with every criterion, and each of both with and without a scaler, which multiplies their result."""


@pytest.mark.parametrize(("division", "criterion", "scaled"), PAIRS)
def test_the_loss_of_accumulated_gradients_is_that_of_the_batch(
    division: str, criterion: str, scaled: bool, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = batch(10 * step + part)
            loss = CRITERIA[criterion](model(x), y)
            losses.append(float(loss.detach()))
            scaler.scale(DIVISIONS[division](loss)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    rows = recorded_rows(run, tmp_path)
    assert ["loss"] == loss_columns(rows)
    assert own == pytest.approx(rows.scalar("loss").tolist(), rel=1e-5)


def test_a_loss_divided_behind_scale_is_that_of_the_batch(tmp_path: Path) -> None:
    model = network()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.05), torch.amp.GradScaler("cpu")
    run, own = ammeter.watch(model, optimizer, scaler, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = batch(10 * step + part)
            loss = mean_loss(model(x), y)
            losses.append(float(loss.detach()))
            (scaler.scale(loss) / N).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


def test_a_window_that_the_data_ends_in_is_undone_as_those_before(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for epoch in range(4):
        losses = Numbers()
        for part in range(2 * N + epoch):
            x, y = batch(100 * epoch + part)
            loss = mean_loss(model(x), y)
            losses.append(float(loss.detach()))
            (loss / N).backward()
            if len(losses) == N or part == 2 * N + epoch - 1:
                optimizer.step()
                optimizer.zero_grad()
                own.append(sum(losses) / len(losses))
                losses.clear()
    rows = recorded_rows(run, tmp_path)
    assert {1.0, 2.0, 3.0, 4.0} >= set(rows.scalar("micro_batches").tolist())
    assert own == pytest.approx(rows.scalar("loss").tolist(), rel=1e-5)


@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (2, 8, 5, 9)])
def test_a_sum_over_all_targets_of_the_batch_is_the_batchs_loss(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """As transformers has it: the number of targets is that of all micro-batches."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        total = 0.0
        for part, rows in enumerate(sizes):
            x, y = batch(10 * step + part, rows)
            loss = summed_loss(model(x), y)
            total += float(loss.detach())
            (loss / torch.tensor(sum(sizes))).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(total / sum(sizes))
    found = recorded_rows(run, tmp_path)
    assert ["loss"] == loss_columns(found)
    assert own == pytest.approx(found.scalar("loss").tolist(), rel=1e-5)


@pytest.mark.parametrize("divided", [False, True])
@pytest.mark.parametrize("sizes", [(8, 8, 8, 8), (2, 8, 5, 9)])
def test_a_sum_over_the_targets_of_each_micro_batch_is_a_mean(
    sizes: tuple[int, ...], divided: bool, tmp_path: Path
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part, rows in enumerate(sizes):
            x, y = batch(10 * step + part, rows)
            loss = summed_loss(model(x), y) / rows
            losses.append(float(loss.detach()))
            (loss / N if divided else loss).backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    found = recorded_rows(run, tmp_path)
    assert ["loss"] == loss_columns(found)
    assert own == pytest.approx(found.scalar("loss").tolist(), rel=1e-5)


def test_micro_batches_weighted_by_their_size_are_one_loss(tmp_path: Path) -> None:
    model, sizes = network(), (2, 8, 5, 9)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        total = 0.0
        for part, rows in enumerate(sizes):
            x, y = batch(10 * step + part, rows)
            loss = mean_loss(model(x), y) * (rows / sum(sizes))
            total += float(loss.detach())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(total)
    assert own == pytest.approx(recorded_rows(run, tmp_path).scalar("loss").tolist(), rel=1e-5)


class Halved(torch.autograd.Function):
    """What it does with a loss does not stand in the graph."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss / N

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / N


UNKNOWN: dict[str, Callable[[Any, Any], Any]] = {
    "a sum": summed_loss,
    "a sum over something": lambda logits, y: summed_loss(logits, y) / 11,
    "a function of the program's own": lambda logits, y: Halved.apply(mean_loss(logits, y)),  # type: ignore[no-untyped-call]
    "half": lambda logits, y: mean_loss(logits, y) / 2,
}


@pytest.mark.parametrize("spelling", UNKNOWN)
def test_what_nobody_can_know_is_not_called_the_loss(spelling: str, tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run, own = ammeter.watch(model, optimizer, dir=tmp_path), Numbers()
    for step in range(STEPS):
        losses = Numbers()
        for part in range(N):
            x, y = batch(10 * step + part)
            loss = UNKNOWN[spelling](model(x), y)
            losses.append(float(loss.detach()))
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        own.append(sum(losses) / N)
    rows = recorded_rows(run, tmp_path)
    assert ["loss_backward"] == loss_columns(rows)
    assert own == pytest.approx(rows.scalar("loss_backward").tolist(), rel=1e-5)
