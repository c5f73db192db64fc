"""Steps whose loss is NaN and which a program applies, with a reset or another backward pass in between."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ammeter.probes.own_scaling.dropped_losses import DroppedLosses
from ammeter.recording import row_queue
from tests.agent.probes.own_scaling.guarded_loop import STEPS, Loop, Pair
from tests.agent.probes.own_scaling.program import of_frames


@pytest.fixture(autouse=True)
def _rows_are_finished_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many steps are known at the bad one depends on the time otherwise, because rows are written in batches."""
    monkeypatch.setattr(row_queue, "BATCH_SECONDS", 0.0)


class Accumulating(Loop):
    """One of several micro-batches is NaN, and the step is applied."""

    def step(self, step: int) -> None:
        for part in range(4):
            (self.loss(step == self.bad and part == 1) / 4).backward()
        self.optimizers[0].step()
        self.zero()


class AccumulatingMore(Loop):
    """Accumulates more micro-batches from the step on in which one is NaN."""

    def step(self, step: int) -> None:
        parts = 8 if step >= self.bad else 4
        for part in range(parts):
            (self.loss(step == self.bad and part == 1) / parts).backward()
        self.optimizers[0].step()
        self.zero()


class SumOfReturned(Loop):
    """Sums up what torch.autograd.grad() returns; the last window of an epoch is short."""

    def step(self, step: int) -> None:
        sums = [torch.zeros_like(parameter) for parameter in self.parameters]
        for part in range(1 if step % 6 == 2 else 4):
            found = torch.autograd.grad(self.loss(step == self.bad and part == 0), self.parameters)
            sums = [total + gradient for total, gradient in zip(sums, found, strict=True)]
        for parameter, total in zip(self.parameters, sums, strict=True):
            parameter.grad = total
        self.optimizers[0].step()


class TwoLosses(Loop):
    def step(self, step: int) -> None:
        self.zero()
        self.loss(step == self.bad).backward()
        self.loss().backward()
        self.optimizers[0].step()


class Sharp(Loop):
    """Sharpness-aware minimization, without a class for it."""

    def step(self, step: int) -> None:
        for _ in range(2):
            self.zero()
            self.loss(step == self.bad).backward()
        self.optimizers[0].step()


class Repairing(Loop):
    """Zeroes bad gradients and steps all the same."""

    def step(self, step: int) -> None:
        self.zero()
        loss = self.loss(step == self.bad)
        loss.backward()
        if not loss.isfinite():
            self.zero(False)
        self.optimizers[0].step()


class Master(Loop):
    """The optimizer has copies of the weights, which receive the gradients behind its zero_grad()."""

    def __init__(self) -> None:
        super().__init__()
        self.copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in self.parameters]
        self.optimizers = [torch.optim.SGD(self.copies, lr=1e-3)]

    def step(self, step: int) -> None:
        self.loss(step == self.bad).backward()
        self.zero()
        for copy, parameter in zip(self.copies, self.parameters, strict=True):
            copy.grad = parameter.grad
        self.optimizers[0].step()
        self.model.zero_grad()


class Adversaries(Pair):
    """The loss of each reaches both, and one of them steps."""

    def step(self, step: int) -> None:
        for number in 0, 1:
            self.optimizers[number].zero_grad()
            (self.loss(step == self.bad and number == 0, self.halves[0]) + self.loss(model=self.halves[1])).backward()
            self.optimizers[number].step()


class Late(Pair):
    """As Adversaries, but both step at the end; the loss of the first reaches gradients that the second resets."""

    def step(self, step: int) -> None:
        self.optimizers[0].zero_grad()
        (self.loss(step == self.bad, self.halves[0]) + self.loss(model=self.halves[1])).backward()
        self.optimizers[1].zero_grad()
        self.loss(model=self.halves[1]).backward()
        for optimizer in self.optimizers:
            optimizer.step()


class Rarely(Pair):
    """One optimizer steps in every second iteration."""

    def step(self, step: int) -> None:
        self.loss(step == self.bad, self.halves[0]).backward()
        self.optimizers[1].zero_grad()
        self.loss(model=self.halves[1]).backward()
        self.optimizers[1].step()
        if step % 2 == 0:
            self.optimizers[0].step()
            self.optimizers[0].zero_grad()


KEPT = [
    *(Accumulating, AccumulatingMore, SumOfReturned, TwoLosses, Sharp, Repairing, Master),
    *(Adversaries, Late, Rarely),
]


@pytest.mark.parametrize("kind", KEPT)
def test_a_step_with_such_a_loss_that_is_applied_is_not_skipped(kind: type[Loop], tmp_path: Path) -> None:
    rows, frames = kind().recorded(tmp_path)
    assert list(range(STEPS)) == rows.steps.tolist()
    assert [0.0] * STEPS == rows.scalar("skipped").tolist()
    assert "was skipped" not in of_frames(frames)["nonfinite-loss"].cause


def test_steps_that_were_not_seen_do_not_show_that_an_optimizer_always_steps(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on the fast path, which records no losses for this."""
    finish = DroppedLosses.finish
    monkeypatch.setattr(DroppedLosses, "finish", lambda self, row: None if row.step % 2 else finish(self, row))
    rows, _ = Rarely().recorded(tmp_path)
    assert [0.0] * STEPS == rows.scalar("skipped").tolist()
