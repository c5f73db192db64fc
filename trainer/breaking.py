"""How training is broken on purpose: the registry of faults, and the points where train.py asks them.

A fault gets the Faults object that train.py asks at a few named points, and changes one of the things it holds.
Its docstring says what a person sees. The verdict that must name it bears the fault's name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

import cnn
import model as gpt
from checkpoint import Parts, Recipe

Network: TypeAlias = gpt.GPT | cnn.CNN
Batch: TypeAlias = tuple[Tensor, Tensor]
Attempt: TypeAlias = Callable[[nn.Module, Optimizer, GradScaler | None, float], None]
Save: TypeAlias = Callable[[Path, Parts, dict[str, int], Recipe], None]

# A model of a few 100,000 weights has large gradients. This puts them where those of a large model or of a global
# batch of millions of tokens lie. It is no fault by itself: with a scale of 65536 training hardly notices it. Behind
# a BatchNorm, which has every pixel of a batch add to the gradient of one weight, they are larger to begin with.
LARGE_MODEL = {gpt.GPT: 2.0**-12, cnn.CNN: 2.0**-15}


ORIGIN = 3  # steps: where a fault that stays was born is looked for in the steps that follow the first bad one

# What a run on the CPU cannot show, so that there is no fault to try these verdicts with, and why.
GPU_ONLY = {
    "sdpa-math": "on the CPU attention with dropout has no other path, so there it is no finding",
    "memory-not-saved": "its numbers come from the allocator of CUDA",
}


@dataclass(frozen=True)
class Told:
    """How a finding has to tell of a fault, which bench/zoo tries.

    names: of the broken model those modules or tensors of which the finding has to name one.
    line_in: "file.py:function", where the line lies that it has to name.
    symptom: what shows the fault first: "" the step it begins at, "skipped" the first skipped step from then on, else
    the first event of that name.
    within: how much later the verdict may be reached, in steps; where `counted` names a column or an event, in readings
    of that column, or times of that event, behind the first symptom's own.
    life: "kept" for a run that has to save checkpoints to show it, "resumed" for one that goes on from one.
    """

    names: Callable[[Any], Sequence[object]] | None = None
    line_in: str = ""
    symptom: str = ""
    within: int = 1
    counted: str = ""
    life: str = ""


@dataclass(frozen=True)
class Fault:
    """One way to break a run: what does it, from which step unless told otherwise, and what it shows with."""

    name: str
    breaks: "Callable[[Faults], None]"
    first_step: int
    precisions: tuple[str, ...]
    optimizers: tuple[str, ...]
    told: Told = Told()
    ranks: int = 1
    """How many processes it takes, started by torchrun."""
    against: tuple[str, ...] | None = None
    """The options that differ in the run it has to be held against to show, where it takes one."""

    @property
    def story(self) -> str:
        """What a person sees, from the docstring."""
        return " ".join((self.breaks.__doc__ or "").split())


REGISTRY: dict[str, Fault] = {}


def fault(
    first_step: int = 0,
    precisions: tuple[str, ...] = ("fp16", "bf16", "fp32"),
    optimizers: tuple[str, ...] = ("adamw", "sgd"),
    told: Told = Told(),
    ranks: int = 1,
    against: tuple[str, ...] | None = None,
) -> "Callable[[Callable[[Faults], None]], Callable[[Faults], None]]":
    """Put the function in the registry; its name, with hyphens, is the fault's."""

    def register(breaks: "Callable[[Faults], None]") -> "Callable[[Faults], None]":
        name = breaks.__name__.replace("_", "-")
        REGISTRY[name] = Fault(name, breaks, first_step, precisions, optimizers, told, ranks, against)
        return breaks

    return register


@dataclass
class Faults:
    """The points where training can be broken. Each hands back what it is given until the fault's step has come."""

    fault: Fault | None
    first_step: int
    model: Network
    scaler: GradScaler | None
    rank: int = 0
    batch: Callable[[Batch], Batch] = field(default=lambda batch: batch)
    loss: Callable[[Tensor], Tensor] = field(default=lambda loss: loss)
    scaled: Callable[[Tensor, Tensor], Tensor] = field(default=lambda scaled, _: scaled)
    """What backward() is called on, given the scaled loss and the loss as it is."""
    attempt: Callable[[Attempt], Attempt] = field(default=lambda attempt: attempt)
    reset: Callable[[Callable[[], None]], Callable[[], None]] = field(default=lambda reset: reset)
    """What resets the gradients once they were used."""
    optimizers: Callable[[Optimizer], list[Optimizer]] = field(default=lambda optimizer: [optimizer])
    """Those that are watched."""
    schedule: Callable[[bool], bool] = field(default=lambda applied: applied)
    """Whether the learning rate moves on, given whether the step was applied."""
    parts: Callable[[Parts], Parts] = field(default=lambda parts: parts)
    """What a checkpoint is made of."""
    restored: Callable[[Parts], Parts] = field(default=lambda parts: parts)
    """What a run that goes on takes out of it."""
    save: Callable[[Save], Save] = field(default=lambda save: save)
    samples: Callable[[int], object] = field(default=lambda samples: samples)

    def begin(self, step: int) -> GradScaler | None:
        """The scaler to go on with in this step. Breaks what there is to break once the step has come."""
        if self.fault and step >= self.first_step:
            self.fault.breaks(self)
            self.fault = None
        return self.scaler


def as_large_models_have_it(training: Faults) -> None:
    """Gradients as small as those of a large model, which need a loss scale in float16."""
    factor = LARGE_MODEL[type(training.model)]
    training.loss = lambda loss: loss * factor


def middle_block(model: Network) -> gpt.Block | cnn.Block:
    """The block with as many before it as after it, so that a finding has to point at a place inside the network."""
    block = model.blocks[len(model.blocks) // 2]
    assert isinstance(block, gpt.Block | cnn.Block)
    return block
