"""Mistakes in the use of a program's own loss scale are found at the step that makes them, with their line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.probes.own_scaling.program import DIVIDE, TIMES, Program, assert_unchanged, found, recorded
from tests.agent.training import events, line_of

FAULTY = 17
Due = Callable[[int], bool]
COURSES: dict[str, Due] = {"once": lambda step: step == FAULTY, "always": lambda step: True}


class Raw(Program):
    def __init__(self, due: Due, times: str = "float", divide: str = "in place") -> None:
        super().__init__(times=times, divide=divide)
        self.due = due

    def backward(self, step: int) -> None:
        if not self.due(step):
            return super().backward(step)
        self.loss().backward()  # type: ignore[no-untyped-call]
        return None


class Undivided(Raw):
    def backward(self, step: int) -> None:
        Program.backward(self, step)

    def divide(self, step: int) -> None:
        if not self.due(step):
            super().divide(step)


class Clipped(Undivided):
    """Limits the gradients before or after the division."""

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)

    def divide(self, step: int) -> None:
        if self.due(step):
            self.clip()
            Program.divide(self, step)
        else:
            Program.divide(self, step)
            self.clip()


class ClippedByHand(Clipped):
    def clip(self) -> None:
        gradients: list[Any] = [parameter.grad for parameter in self.parameters]
        norm = sum([float(gradient.square().sum()) for gradient in gradients]) ** 0.5
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.5 / norm))


class Mixed(Undivided):
    """Adds a scaled penalty to gradients that are already divided."""

    def penalize(self) -> None:
        penalty = 1e-3 * torch.cat([parameter.flatten() for parameter in self.parameters]).abs().sum()
        (penalty * self.scale).backward()  # type: ignore[no-untyped-call]

    def divide(self, step: int) -> None:
        if not self.due(step):
            self.penalize()
        Program.divide(self, step)
        if self.due(step):
            self.penalize()


@pytest.mark.parametrize("divide", DIVIDE)
@pytest.mark.parametrize("times", TIMES)
def test_one_loss_without_the_scale_is_found(times: str, divide: str, tmp_path: Path) -> None:
    findings = found(Raw(COURSES["once"], times, divide), tmp_path)
    assert ["loss-not-scaled"] == list(findings)
    assert FAULTY == findings["loss-not-scaled"].first_step
    assert findings["loss-not-scaled"].caller.endswith(line_of(Raw.backward, "self.loss().backward()"))  # type: ignore[union-attr]
    assert "the program's own loss scale" in findings["loss-not-scaled"].cause


@pytest.mark.parametrize("times", TIMES)
def test_one_step_without_the_division_is_found(times: str, tmp_path: Path) -> None:
    finding = found(Undivided(COURSES["once"], times), tmp_path)["gradients-not-unscaled"]
    assert FAULTY == finding.first_step
    assert finding.caller.endswith(line_of(Program.update, "self.optimizer.step()"))  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [Raw, Undivided, Clipped])
def test_a_mistake_from_the_first_step_on_is_found(kind: type[Raw], tmp_path: Path) -> None:
    names = {Raw: "loss-not-scaled", Undivided: "gradients-not-unscaled", Clipped: "clip-before-unscale"}
    assert names[kind] in found(kind(COURSES["always"]), tmp_path)


class Momentum(torch.optim.SGD):
    """An optimizer of the program's own. divisor: what it divides the gradients by itself."""

    divisor = 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            parameter -= self.param_groups[0]["lr"] * parameter.grad / self.divisor


@pytest.mark.parametrize("divides", [True, False])
def test_an_optimizer_that_divides_by_itself_is_right(divides: bool, tmp_path: Path) -> None:
    program = Undivided(COURSES["always"])
    program.optimizer = optimizer = Momentum(program.parameters, lr=1e-3)
    optimizer.divisor = program.scale if divides else 1.0
    assert ("gradients-not-unscaled" in found(program, tmp_path)) is not divides


class PerSample(Program):
    """Multiplies a mean by the number of its elements, 4096, and divides nothing."""

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            output = self.model(torch.randn(8, 12)).repeat(16, 11)[:, :32]
        return torch.nn.functional.mse_loss(output.float(), torch.randn(128, 32)) * 4096.0

    def backward(self, step: int) -> None:
        self.loss().backward()  # type: ignore[no-untyped-call]

    def divide(self, step: int) -> None:
        pass


def test_a_factor_that_counts_elements_is_no_scale_of_undivided_gradients(tmp_path: Path) -> None:
    assert "gradients-not-unscaled" not in found(PerSample(), tmp_path)


@pytest.mark.parametrize("kind", [Clipped, ClippedByHand])
def test_one_clip_before_the_division_is_found(kind: type[Clipped], tmp_path: Path) -> None:
    findings = found(kind(COURSES["once"]), tmp_path)
    assert ["clip-before-unscale"] == list(findings)
    assert FAULTY == findings["clip-before-unscale"].first_step


@pytest.mark.parametrize("course", COURSES)
def test_scaled_gradients_on_divided_ones_are_found(course: str, tmp_path: Path) -> None:
    finding = found(Mixed(COURSES[course]), tmp_path)["mixed-scale-gradients"]
    assert (FAULTY if course == "once" else 0) == finding.first_step
    assert finding.caller.endswith(line_of(Mixed.penalize, "self.scale).backward()"))  # type: ignore[union-attr]


def test_watching_changes_no_weight(tmp_path: Path) -> None:
    assert_unchanged(lambda: ClippedByHand(COURSES["once"]), tmp_path)


@pytest.mark.parametrize("kind", [Raw, Undivided, Clipped, ClippedByHand, Mixed])
def test_the_right_order_is_no_finding(kind: type[Raw], tmp_path: Path) -> None:
    assert {} == found(kind(lambda step: False), tmp_path)


class Measured(Clipped):
    """Calls torch's clip before the division only to learn the norm: the limit is never reached."""

    def clip(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters, 1e9)


def test_a_limit_above_the_scale_clips_nothing(tmp_path: Path) -> None:
    assert [] == events(recorded(Measured(COURSES["once"]), tmp_path)[1], "usage.clip_before_unscale")


class Early(Program):
    """Scales the errors of the samples, before their mean."""

    def backward(self, step: int) -> None:
        with torch.autocast("cpu", torch.float16):
            errors = self.model(torch.randn(8, 12)).float().square()
        self.times(errors, self.scale).mean().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("times", TIMES)
def test_a_scale_before_the_mean_is_a_scale(times: str, tmp_path: Path) -> None:
    assert {} == found(Early(times=times), tmp_path)
