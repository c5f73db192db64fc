"""Loops that update the weights themselves, without a step() of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.agent.training import Model, Seen, watching

SCALE = 1024.0
RATE = 1e-4
STEPS = 24
FAULTY = 11

Due = Callable[[int], bool]


class Loop:
    """Updates the weights without a step() of the optimizer. Tests replace parts of it.

    Args:
        due: the steps that leave the gradients as backward() made them.
        own: whether the program scales its loss itself.
    """

    def __init__(self, due: Due = lambda step: False, *, own: bool = False, scale: float = SCALE) -> None:
        torch.manual_seed(0)
        self.model, self.due, self.own, self.scale = Model(), due, own, scale
        self.parameters: list[Any] = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.1)
        self.scaler = None if own else torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)

    def loss(self) -> Any:
        with torch.autocast("cpu", torch.float16):
            return self.model(torch.randn(8, 12)).float().square().mean()

    def backward(self, step: int) -> None:
        loss = self.loss()
        (loss * self.scale if self.scaler is None else self.scaler.scale(loss)).backward()  # the scaled loss

    def divide(self, step: int) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)
            return
        for parameter in self.parameters:
            parameter.grad /= self.scale

    def rate(self, step: int) -> float:
        return RATE

    @torch.no_grad()
    def update(self, step: int) -> None:
        for parameter in self.parameters:
            parameter -= self.rate(step) * parameter.grad

    def renew(self) -> None:
        if self.scaler is not None:
            self.scaler.update()

    def step(self, step: int) -> None:
        for parameter in self.parameters:
            parameter.grad = None
        self.backward(step)
        is_faulty = self.due(step)
        if not is_faulty:
            self.divide(step)
        self.update(step)
        if not is_faulty:
            self.renew()


class AtOnce(Loop):
    @torch.no_grad()
    def update(self, step: int) -> None:
        torch._foreach_add_(self.parameters, [parameter.grad for parameter in self.parameters], alpha=-RATE)


class ThroughZeroGrad(Loop):
    def step(self, step: int) -> None:
        super().step(step)
        self.optimizer.zero_grad()


class Growing(Loop):
    """The scale of the program doubles every four steps."""

    def renew(self) -> None:
        super().renew()
        self.good = getattr(self, "good", 0) + 1
        if self.own and self.good % 4 == 0:
            self.scale *= 2


class Accumulating(Loop):
    def backward(self, step: int) -> None:
        super().backward(step)
        super().backward(step)


def trained(loop: Loop, folder: Path, steps: int = STEPS) -> Seen:
    with watching(folder, loop.model, loop.optimizer, loop.scaler, budget=1.0) as seen:
        for step in range(steps):
            loop.step(step)
    return seen


class InTheFactor(Loop):
    """Divides each gradient as it uses it."""

    def divide(self, step: int) -> None:
        pass

    def renew(self) -> None:
        pass

    def rate(self, step: int) -> float:
        return RATE / self.scale


class InTheFactorThenReset(InTheFactor):
    """Its gradients are still there when a call shows the update."""

    def step(self, step: int) -> None:
        super().step(step)
        self.optimizer.zero_grad()


class Mixed(InTheFactor):
    """Divides the gradients in some steps, and in others as it uses them."""

    def divide(self, step: int) -> None:
        if step % 5 != 4:
            Loop.divide(self, step)

    def renew(self) -> None:
        if self.scaler is not None:
            self.scaler._per_optimizer_states.clear()

    def rate(self, step: int) -> float:
        return RATE / self.scale if step % 5 == 4 else RATE


class Restarted(Loop):
    """A learning rate that rises by a thousand, which is nearly the scale."""

    def rate(self, step: int) -> float:
        return RATE if step < FAULTY else 1000 * RATE


class Warm(Loop):
    def rate(self, step: int) -> float:
        return RATE * 1.7**step if step < FAULTY else RATE * 1.7**FAULTY


class Cosine(Loop):
    def rate(self, step: int) -> float:
        return 1e-6 + 1e-2 * (1 + math.cos(math.pi * (step % 8) / 8)) / 2


class Searching(Loop):
    """Powers of two, as of a line search."""

    def rate(self, step: int) -> float:
        return RATE * 2.0 ** (step * 7 % 11)


class Limited(Loop):
    """Limits the norm itself."""

    def divide(self, step: int) -> None:
        super().divide(step)
        norm = torch.stack(torch._foreach_norm([parameter.grad for parameter in self.parameters])).norm()
        for parameter in self.parameters:
            parameter.grad *= min(1.0, 0.01 / float(norm))


class Heavy(Loop):
    """Momentum, which begins anew every few steps."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step % 7 == 0:
            self.memory = [torch.zeros_like(parameter) for parameter in self.parameters]
        for parameter, memory in zip(self.parameters, self.memory, strict=True):
            memory.mul_(0.9).add_(parameter.grad)
            parameter -= RATE * memory


class Signs(Loop):
    @torch.no_grad()
    def update(self, step: int) -> None:
        for parameter in self.parameters:
            parameter -= RATE * parameter.grad.sign()


class Decayed(Loop):
    @torch.no_grad()
    def update(self, step: int) -> None:
        super().update(step)
        for parameter in self.parameters:
            parameter *= 0.99 if step % 5 == 4 else 1.0


class Restored(Loop):
    """Goes back to earlier weights now and then."""

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step == 1:
            self.kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        super().update(step)
        if step % 6 == 5:
            self.model.load_state_dict(self.kept)


class Lenient(Loop):
    """Keeps its scale, whether or not something was divided."""

    renew = Mixed.renew


class PartlyRaw(Lenient):
    """A loss without the scale in some steps, whose gradients need no division."""

    def is_raw(self, step: int) -> bool:
        return step % 5 == 4

    def backward(self, step: int) -> None:
        self.loss().backward() if self.is_raw(step) else super().backward(step)

    def divide(self, step: int) -> None:
        if not self.is_raw(step):
            super().divide(step)


class DividedByHooks(Lenient):
    """From some step on, hooks divide each gradient inside backward()."""

    def divide(self, step: int) -> None:
        if step < FAULTY:
            super().divide(step)
        if step == FAULTY - 1:
            for parameter in self.parameters:
                parameter.register_hook(lambda grad: grad / self.scale)


class Weighted(Loop):
    """A part of the loss that weighs as much as the scale, in some steps."""

    def loss(self) -> Any:
        self.count = getattr(self, "count", 0) + 1
        return super().loss() * (SCALE if self.count % 5 == 0 else 1.0)


HEALTHY = [
    *(
        Loop,
        AtOnce,
        ThroughZeroGrad,
        Growing,
        Accumulating,
        InTheFactor,
        InTheFactorThenReset,
        Mixed,
        Restarted,
        Warm,
        Cosine,
        Searching,
    ),
    *(Limited, Heavy, Signs, Decayed, Restored, PartlyRaw, DividedByHooks, Weighted),
]


class AtTheRate(ThroughZeroGrad):
    """Uses the learning rate of the optimizer. Its gradients are still there when a call shows the update."""

    def __init__(self, due: Due = lambda step: False, **options: Any) -> None:
        super().__init__(due, **options)
        self.optimizer.param_groups[0]["lr"] = RATE


class WithHooks(AtTheRate):
    """Hooks divide each gradient inside backward()."""

    def __init__(self, due: Due = lambda step: True) -> None:
        super().__init__(due)
        for parameter in self.parameters:
            parameter.register_hook(lambda grad: grad / SCALE)


class OnTheRawLoss(AtTheRate):
    def backward(self, step: int) -> None:
        loss = self.loss()
        assert self.scaler is not None
        self.scaler.scale(loss)
        loss.backward()
