"""Mistakes of a program with a loss scale of its own that assigns the results of torch.autograd.grad()."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.agent.probes.own_scaling.program import DIVIDE, TIMES, Program, assert_unchanged, found, recorded
from tests.agent.training import line_of

FAULTY = 17
MISTAKES = ("", "loss-not-scaled", "gradients-not-unscaled", "clip-before-unscale")


class Assigning(Program):
    """Makes one mistake in the steps that are due."""

    def __init__(
        self, mistake: str, due: Callable[[int], bool], times: str = "float", divide: str = "in place"
    ) -> None:
        super().__init__(times=times, divide=divide)
        self.mistake, self.due = mistake, due
        self.losses: list[float] = []

    def errs(self, mistake: str, step: int) -> bool:
        return self.mistake == mistake and self.due(step)

    def backward(self, step: int) -> None:
        loss = self.loss()
        self.losses.append(loss.item())
        if not self.errs("loss-not-scaled", step):
            loss = self.times(loss, self.scale)
        gradients = torch.autograd.grad(loss, self.parameters)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient

    def divide(self, step: int) -> None:
        if self.errs("clip-before-unscale", step):
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.5)
        if not self.errs("gradients-not-unscaled", step):
            super().divide(step)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_mistake_is_found_in_its_step(mistake: str, times: str, tmp_path: Path) -> None:
    findings = found(Assigning(mistake, lambda step: step == FAULTY, times), tmp_path)
    assert ({mistake} if mistake else set()) == set(findings) - {"diverged"}  # which one huge step may cause
    if mistake:
        assert FAULTY == findings[mistake].first_step


@pytest.mark.parametrize("mistake", MISTAKES[1:])
def test_a_mistake_from_the_first_step_on_is_found(mistake: str, tmp_path: Path) -> None:
    assert mistake in found(Assigning(mistake, lambda _: True), tmp_path)


def test_the_text_names_the_call_that_computed_the_gradients(tmp_path: Path) -> None:
    finding = found(Assigning("loss-not-scaled", lambda step: step == FAULTY), tmp_path)["loss-not-scaled"]
    line = line_of(Assigning.backward, "torch.autograd.grad(")
    assert finding.cause.startswith("torch.autograd.grad() at ")
    assert f"{line} was called on a loss that is not multiplied by the program's own loss scale" in finding.cause
    assert "backward()" not in finding.cause + finding.fix


@pytest.mark.parametrize("divide", DIVIDE)
def test_losses_and_norms_are_recorded_without_the_scale(divide: str, tmp_path: Path) -> None:
    program = Assigning("", lambda _: False, divide=divide)
    rows, _ = recorded(program, tmp_path, steps=8)
    assert [program.scale] * 8 == rows.scalar("scale").tolist()
    assert pytest.approx(program.losses, rel=1e-3) == rows.scalar("loss").tolist()
    norms = rows.scalar("grad_norm")
    assert norms[norms == norms].max() < program.scale / 64


def test_watching_changes_no_weight(tmp_path: Path) -> None:
    assert_unchanged(lambda: Assigning("clip-before-unscale", lambda step: step == FAULTY), tmp_path)
