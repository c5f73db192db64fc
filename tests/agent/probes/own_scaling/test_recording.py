"""A program's own loss scale is recorded: the scale, its changes, skipped steps, and the loss without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ammeter.recording import row_queue
from tests.agent.own_functions import Passing
from tests.agent.probes.own_scaling.program import DIVIDE, Program, found, of_frames, recorded
from tests.agent.training import events


class Overflowing(Program):
    """Its gradients overflow in some steps."""

    def loss(self) -> torch.Tensor:
        factor = float("inf") if self.good == 6 and self.scale >= 4096 else 1.0
        return super().loss() * factor


@pytest.mark.parametrize("divide", DIVIDE)
@pytest.mark.parametrize("scale", [4096.0, 1000.0], ids=["power of two", "thousand"])
@pytest.mark.parametrize("times", ["float", "tensor"])
def test_the_loss_is_recorded_without_the_scale(times: str, scale: float, divide: str, tmp_path: Path) -> None:
    program, losses = Program(scale, times, divide), []
    compute = program.loss

    def noted() -> torch.Tensor:
        losses.append(loss := compute())
        return loss

    program.loss = noted  # type: ignore[method-assign]
    rows, _ = recorded(program, tmp_path, steps=6)
    assert [scale] * 6 == rows.scalar("scale").tolist()
    assert pytest.approx([loss.item() for loss in losses], rel=1e-3) == rows.scalar("loss").tolist()


def test_growth_is_recorded_and_harmless(tmp_path: Path) -> None:
    rows, frames = recorded(Program(growth=5), tmp_path, steps=12)
    assert [4096.0] * 5 + [8192.0] * 5 + [16384.0] * 2 == rows.scalar("scale").tolist()
    growths = [(event.step, event.data["from"], event.data["to"]) for event in events(frames, "scaler.growth")]
    assert [(5, 4096.0, 8192.0), (10, 8192.0, 16384.0)] == growths


class Weighted(Program):
    """The loss has a weight, too, of the size of the scale; the scale grows by a factor."""

    weight, factor = 100.0, 2.0

    def loss(self) -> torch.Tensor:
        return super().loss() * self.weight

    def step(self, step: int) -> None:
        self.scale = 512.0 * (self.factor if step >= 5 else 1.0)
        super().step(step)


@pytest.mark.parametrize(("weight", "factor"), [(100.0, 2.0), (1.0, 3.0)], ids=["beside a weight", "by three"])
def test_a_changed_scale_is_known_among_factors(weight: float, factor: float, tmp_path: Path) -> None:
    program = Weighted()
    program.weight, program.factor = weight, factor
    rows, _ = recorded(program, tmp_path, steps=12)
    assert [512.0] * 5 + [512.0 * factor] * 7 == rows.scalar("scale").tolist()


def test_a_factor_below_64_is_no_scale_even_if_the_gradients_are_divided(tmp_path: Path) -> None:
    assert np.isnan(recorded(Program(scale=32.0), tmp_path, steps=12)[0].scalar("scale")).all()
    assert [64.0] * 12 == recorded(Program(scale=64.0), tmp_path / "64", steps=12)[0].scalar("scale").tolist()


@pytest.mark.parametrize("reset", [True, False], ids=["zero_grad", "by hand"])
def test_a_step_that_the_program_skips_is_a_step(reset: bool, tmp_path: Path) -> None:
    program = Overflowing()
    if not reset:
        program.optimizer.zero_grad = program.forget  # type: ignore[method-assign]
    rows, frames = recorded(program, tmp_path, steps=12)
    assert 12 == len(rows.steps)
    assert [0.0] * 6 + [1.0] + [0.0] * 5 == rows.scalar("skipped").tolist()
    assert [0.0] * 6 + [1.0] + [0.0] * 5 == rows.scalar("found_inf").tolist()
    assert [4096.0] * 7 + [2048.0] * 5 == rows.scalar("scale").tolist()
    assert [{"scale": 4096.0, "consecutive": 1}] == [event.data for event in events(frames, "step.skipped")]
    assert [(7, 4096.0, 2048.0)] == [
        (event.step, event.data["from"], event.data["to"]) for event in events(frames, "scaler.backoff")
    ]


class Assigned(Overflowing):
    """Receives its gradients from torch.autograd.grad(), and assigns them."""

    bad: tuple[int, ...] = (6,)

    def loss(self) -> torch.Tensor:
        return Program.loss(self)

    def backward(self, step: int) -> None:
        found = torch.autograd.grad(self.times(self.loss(), self.scale), self.parameters)
        for parameter, gradient in zip(self.parameters, found, strict=True):
            parameter.grad = gradient * torch.inf if step in self.bad else gradient


def kept(set_to_none: bool = True) -> None:
    """Leaves the gradients where they are; the next ones replace them."""


@pytest.mark.parametrize("bad", [6, 0])
@pytest.mark.parametrize("reset", ["zero_grad", "by hand", "replaced"])
def test_a_step_with_assigned_gradients_that_the_program_skips_is_a_step(reset: str, bad: int, tmp_path: Path) -> None:
    program = Assigned()
    program.bad = (bad,)
    if reset != "zero_grad":
        program.optimizer.zero_grad = program.forget if reset == "by hand" else kept  # type: ignore[method-assign]
    rows, frames = recorded(program, tmp_path, steps=40)
    assert 40 == len(rows.steps)
    assert [bad] == rows.steps[rows.scalar("skipped") > 0].tolist()
    assert [] == pages(frames)


class BadWeight(Overflowing):
    """An overflow reaches one element of a weight, which is not among the sampled gradients."""

    clips = False

    def loss(self) -> torch.Tensor:
        return Program.loss(self)

    def backward(self, step: int) -> None:
        super().backward(step)
        if step in self.bad:
            self.model.middle.weight.grad.view(-1)[-1] = torch.inf  # type: ignore[union-attr]

    def divide(self, step: int) -> None:
        super().divide(step)
        if self.clips:
            torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)

    bad: tuple[int, ...] = (6, 9)


@pytest.mark.parametrize("clips", [True, False], ids=["clipped", "not clipped"])
@pytest.mark.parametrize("reset", [True, False], ids=["zero_grad", "by hand"])
def test_a_skipped_step_is_found_from_gradients_that_are_not_sampled(reset: bool, clips: bool, tmp_path: Path) -> None:
    program = BadWeight()
    program.clips = clips
    if not reset:
        program.optimizer.zero_grad = program.forget  # type: ignore[method-assign]
    rows, frames = recorded(program, tmp_path, steps=12)
    assert [6, 9] == rows.steps[rows.scalar("skipped") > 0].tolist()
    assert [4096.0] * 7 + [2048.0] * 3 + [1024.0] * 2 == rows.scalar("scale").tolist()
    assert [] == pages(frames)


def test_steps_that_are_skipped_before_the_scaler_is_proven_are_steps(tmp_path: Path) -> None:
    program = BadWeight(2.0**16)
    program.bad = (0, 1, 2)
    rows, frames = recorded(program, tmp_path, steps=8)
    assert [1.0] * 3 + [0.0] * 5 == rows.scalar("skipped").tolist()
    assert [] == pages(frames)


class HiddenLater(Program):
    """Passes the scaled loss through a Function from a step on, or the loss without its scale."""

    before_scale = False

    def backward(self, step: int) -> None:
        passed: Any = Passing.apply
        if step < 12:
            loss = self.times(self.loss(), self.scale)
        elif self.before_scale:
            loss = self.times(passed(self.loss(), 1.0), self.scale)
        else:
            loss = passed(self.times(self.loss(), self.scale), 1.0)
        loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("before_scale", [True, False])
def test_a_loss_whose_graph_hides_the_scale_is_not_recorded_with_it(before_scale: bool, tmp_path: Path) -> None:
    program = HiddenLater()
    program.before_scale = before_scale
    rows, frames = recorded(program, tmp_path, steps=40)
    losses = rows.scalar("loss")
    assert (losses[losses == losses] < 10).all()
    assert (40 if before_scale else 12) == int((losses == losses).sum())
    assert [] == pages(frames)


class HalfHidden(HiddenLater):
    """Two backward passes in a step, the second of which hides the scale."""

    def backward(self, step: int) -> None:
        super().backward(0)
        super().backward(step)


def test_a_step_with_one_hidden_loss_records_no_part_of_the_sum(tmp_path: Path) -> None:
    rows, frames = recorded(HalfHidden(), tmp_path, steps=24)
    losses = np.stack([rows.scalar(name) for name in rows.schema.losses])
    assert np.isnan(losses[:, 12:]).all()
    assert np.isfinite(losses[:, 6:12]).any(axis=0).all()
    assert [] == pages(frames)


def test_an_infinite_loss_whose_graph_hides_the_scale_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_queue, "BATCH_SECONDS", 0.0)  # a row that is finished later leaves the loss out
    program = HiddenLater()
    usual = program.loss
    program.loss = lambda: usual() * (torch.inf if program.good == 20 else 1)  # type: ignore[method-assign]
    rows, _ = recorded(program, tmp_path, steps=24)
    assert np.isinf(rows.scalar("loss")).any()


def pages(frames: list[Any]) -> list[str]:
    return [finding.verdict for finding in of_frames(frames).values() if finding.severity == "page"]


@pytest.mark.parametrize("factor", [64.0, 1000.0])
def test_a_weight_of_the_loss_is_no_scale(factor: float, tmp_path: Path) -> None:
    program = Program(factor)
    program.division = lambda parameters, scale: None
    rows, frames = recorded(program, tmp_path, steps=6)
    assert not any(rows.scalar("scale") > 0)
    assert (rows.scalar("loss") > factor / 100).all()
    assert [] == events(frames, "usage.gradients_not_unscaled")


@pytest.mark.parametrize("factor", [64.0, 1000.0])
def test_a_weight_of_the_loss_is_no_finding(factor: float, tmp_path: Path) -> None:
    program = Program(factor)
    program.division = lambda parameters, scale: None
    assert not {"gradients-not-unscaled", "loss-not-scaled"} & set(found(program, tmp_path, steps=40))


def test_a_scale_is_seen_if_the_program_receives_its_gradients(tmp_path: Path) -> None:
    class Returned(Program):
        def backward(self, step: int) -> None:
            gradients = torch.autograd.grad(self.times(self.loss(), self.scale), self.parameters)
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient

    assert "no-loss-scaling" not in found(Returned(), tmp_path, steps=60)
    assert "no-loss-scaling" in found(Returned(1.0), tmp_path / "unscaled", steps=60)


class UpdatesByHand(Program):
    """Updates its weights itself, and runs none of the optimizer's hooks."""

    def __init__(self, reset: str) -> None:
        super().__init__()
        self.reset = self.optimizer.zero_grad if reset == "zero_grad" else self.forget
        self.losses: list[float] = []
        self.norms: list[float] = []

    def loss(self) -> torch.Tensor:
        loss = super().loss()
        self.losses.append(loss.item())
        return loss

    def update(self, step: int) -> None:
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        self.norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
        with torch.no_grad():
            torch._foreach_add_(self.parameters, gradients, alpha=-1e-3)

    def step(self, step: int) -> None:
        self.reset()
        self.backward(step)
        self.divide(step)
        self.update(step)


@pytest.mark.parametrize("reset", ["zero_grad", "assigned None"])
def test_gradients_that_are_read_before_their_division_are_recorded_without_the_scale(
    reset: str, tmp_path: Path
) -> None:
    program = UpdatesByHand(reset)
    rows, _ = recorded(program, tmp_path, steps=12)
    norms = rows.scalar("grad_norm")
    read = np.flatnonzero(np.isfinite(norms))
    assert read.size > 8
    assert pytest.approx([program.norms[at] for at in read], rel=1e-3) == norms[read].tolist()
    assert pytest.approx(program.losses, rel=1e-3) == rows.scalar("loss").tolist()
