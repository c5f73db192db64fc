"""A program that scales its loss itself, in several spellings, and the findings on it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from tests.agent.stream_judgement import views
from tests.agent.training import Model, stream, watching

Divide = Callable[[list[torch.Tensor], float], None]
Times = Callable[[torch.Tensor, float], torch.Tensor]


class Stretch(torch.autograd.Function):
    """Multiplies a loss, where its graph shows no factor."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return loss * scale

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        return upstream * ctx.scale, None


def in_place(parameters: list[torch.Tensor], scale: float) -> None:
    for parameter in parameters:
        parameter.grad.div_(scale)  # type: ignore[union-attr]


def through_data(parameters: list[torch.Tensor], scale: float) -> None:
    for parameter in parameters:
        parameter.grad.data /= scale  # type: ignore[union-attr]


def at_once(parameters: list[torch.Tensor], scale: float) -> None:
    gradients: list[Any] = [parameter.grad for parameter in parameters]
    torch._foreach_mul_(gradients, 1.0 / scale)


def replaced(parameters: list[torch.Tensor], scale: float) -> None:
    for parameter in parameters:
        gradient: Any = parameter.grad
        parameter.grad = gradient / scale


TIMES: dict[str, Times] = {
    "float": lambda loss, scale: loss * scale,
    "tensor": lambda loss, scale: torch.tensor(scale).mul(loss),
    "function": Stretch.apply,
}
DIVIDE: dict[str, Divide] = {"in place": in_place, "data": through_data, "foreach": at_once, "replaced": replaced}


class Program:
    """A loop of a model with a dynamic scale. Tests replace its methods with mistakes."""

    def __init__(self, scale: float = 4096.0, times: str = "float", divide: str = "in place", growth: int = 1000):
        torch.manual_seed(0)
        self.model = Model()
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.scale, self.growth, self.good = scale, growth, 0
        self.times, self.division = TIMES[times], DIVIDE[divide]
        self.parameters: list[torch.Tensor] = list(self.model.parameters())

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return self.model(torch.randn(8, 12)).float().square().mean()  # type: ignore[no-any-return]

    def backward(self, step: int) -> None:
        self.times(self.loss(), self.scale).backward()  # type: ignore[no-untyped-call]

    def divide(self, step: int) -> None:
        self.division(self.parameters, self.scale)

    def update(self, step: int) -> None:
        """Clips nothing; steps, or skips a step with NaN or Inf; then changes the scale."""
        if all(bool(parameter.grad.isfinite().all()) for parameter in self.parameters):  # type: ignore[union-attr]
            self.optimizer.step()
            self.good += 1
            if self.good % self.growth == 0:
                self.scale *= 2
        else:
            self.scale /= 2

    def forget(self, set_to_none: bool = True) -> None:
        """Resets the gradients without the optimizer's zero_grad()."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.backward(step)
        self.divide(step)
        self.update(step)


def recorded(program: Program, folder: Path, steps: int = 24) -> tuple[Any, list[Any]]:
    """Trains under watch() and returns the rows and all frames."""
    with watching(folder, program.model, program.optimizer) as watched:
        for step in range(steps):
            program.step(step)
    return stream(watched.run, folder)


def found(program: Program, folder: Path, steps: int = 24) -> dict[str, Finding]:
    """Trains under watch() and returns the findings by verdict."""
    return of_frames(recorded(program, folder, steps)[1])


def of_frames(frames: list[Any]) -> dict[str, Finding]:
    findings: dict[str, Finding] = {}
    states: dict[str, bytes] = {}
    for part in views(frames):
        judged = verdicts.judge(states, part)
        assert {} == judged.faults
        states = judged.states
        findings |= {finding.verdict: finding for finding in judged.findings}
    return findings


def assert_unchanged(make: Callable[[], Program], folder: Path, steps: int = 24) -> None:
    """Asserts that watching changes no bit of the weights.

    The program draws from torch's generator, so that a reading that draws shows, too.
    """
    watched, alone = make(), make()
    torch.manual_seed(1)
    found(watched, folder, steps)
    torch.manual_seed(1)
    for step in range(steps):
        alone.step(step)
    for one, other in zip(watched.parameters, alone.parameters, strict=True):
        assert torch.equal(one, other)
