"""Faults that take their time: nothing fails and no number is wrong by itself, only a longer look shows them."""

import time
from pathlib import Path

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from ammeter.verdicts.dynamics import sign_flip as sign_flip_verdict
from ammeter.verdicts.dynamics import stagnation as stagnation_verdict
from breaking import Attempt, Faults, Told, fault
from checkpoint import Parts, Recipe

TINY = 1e-6  # of the learning rate that was meant
FASTER = 36_000  # ten hours of the clock in a second


@fault(first_step=100, told=Told(within=3 * sign_flip_verdict.ENOUGH, counted="grad_agreement"))
def sign_flip(training: Faults) -> None:
    """The loss falls no further and the steps go back and forth: to save traffic ranks send only how their gradient
    differs from the last one, and what arrives is stepped on as it is instead of being added up again, so that each
    step takes back the one before."""

    def sent_as_difference(weight: nn.Parameter) -> None:
        last: list[Tensor] = []

        def difference(gradient: Tensor) -> Tensor:
            sent = gradient - last.pop() if last else gradient
            last.append(gradient)
            return sent

        weight.register_hook(difference)  # type: ignore[no-untyped-call]

    for weight in training.model.parameters():
        sent_as_difference(weight)


@fault(told=Told(within=2 * stagnation_verdict.STEPS))
def stagnation(training: Faults) -> None:
    """The loss stays where it began although every step is applied and gradients are what they should be: the learning
    rate was given in millionths, and is taken as it stands."""

    def with_a_tiny_rate(attempt: Attempt) -> Attempt:
        def step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            meant = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] *= TINY
            attempt(model, optimizer, scaler, clip)
            for group, rate in zip(optimizer.param_groups, meant, strict=True):
                group["lr"] = rate

        return step

    training.attempt = with_a_tiny_rate


@fault(first_step=20, told=Told(within=200, life="kept"))
def checkpoint_stale(training: Faults) -> None:
    """The run trains on for hours and keeps no more checkpoints, because the condition around the save compares a step
    with an epoch. Nobody would wait for that here, so the clock goes fast: ten hours in a second."""
    training.save = lambda _: forgotten
    now, began = time.time_ns, time.time_ns()
    time.time_ns = lambda: began + FASTER * (now() - began)


def forgotten(path: Path, parts: Parts, progress: dict[str, int], recipe: Recipe) -> None:
    """Where the condition is never true."""
