"""Ways to break a Trainer from outside: replace a method of one object, or a part that it holds."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

import cnn
import model as gpt
from build import Network
from faults.registry import Fault
from train import Trainer

# A model of a few 100,000 weights has large gradients. This factor makes them as small as those of a large model or of
# a global batch of millions of tokens. It is no fault by itself: with a scale of 65536 training hardly notices it. A
# BatchNorm makes gradients larger, because every pixel of a batch adds to the gradient of one weight.
LARGE_MODEL_FACTORS = {gpt.GPT: 2.0**-12, cnn.CNN: 2.0**-15}


def inject(fault: Fault, first_step: int, trainer: Trainer) -> None:
    """Breaks the trainer when it comes to this step: at once for step 0, so before Ammeter watches it."""
    if first_step == 0:
        fault.breaks(trainer)
        return
    train_step = trainer.train_step

    def break_when_due() -> Any:
        if trainer.progress.step < first_step:
            return train_step()
        replace(trainer, train_step=train_step)
        fault.breaks(trainer)
        return trainer.train_step()

    replace(trainer, train_step=break_when_due)


def replace(target: object, **methods: Callable[..., Any]) -> None:
    """Replaces methods of this one object; its class stays as it is."""
    for name, method in methods.items():
        if not callable(getattr(target, name, None)):
            raise AttributeError(f"{type(target).__name__} has no method {name!r} to replace")
        vars(target)[name] = method


def around(trainer: Trainer, before: Callable[[], Any], after: Callable[[], Any] = lambda: None) -> None:
    """Runs a function before each apply_gradients(), and another one after it."""
    apply_gradients = trainer.apply_gradients

    def surrounded() -> None:
        before()
        apply_gradients()
        after()

    replace(trainer, apply_gradients=surrounded)


def step_with_rate(trainer: Trainer, rate: Callable[[float], float]) -> None:
    """Steps with a learning rate computed from the scheduled one, which the schedule does not see."""
    scheduled: list[float] = []

    def change() -> None:
        groups = trainer.optimizer.param_groups
        scheduled[:] = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = rate(group["lr"])

    def restore() -> None:
        for group, before in zip(trainer.optimizer.param_groups, scheduled, strict=True):
            group["lr"] = before

    around(trainer, change, restore)


def watch_instead(trainer: Trainer, **parts: Any) -> None:
    """Shows these parts to Ammeter in place of the trainer's own."""
    watch = trainer.watch

    def watch_parts(**settings: Any) -> Any:
        own = {name: vars(trainer)[name] for name in parts}
        vars(trainer).update(parts)
        try:
            return watch(**settings)
        finally:
            vars(trainer).update(own)

    replace(trainer, watch=watch_parts)


def resume_without(trainer: Trainer, name: str) -> None:
    """Restores every part of a checkpoint but this one."""
    resume, parts = trainer.resume, trainer.parts

    def resume_other_parts() -> None:
        replace(trainer, parts=lambda: {key: part for key, part in parts().items() if key != name})
        resume()
        replace(trainer, parts=parts)

    replace(trainer, resume=resume_other_parts)


def imitate_large_model(trainer: Trainer) -> None:
    """Makes gradients as small as a large model has them, so that float16 needs a loss scale."""
    backward, factor = trainer.backward, LARGE_MODEL_FACTORS[type(trainer.model)]
    replace(trainer, backward=lambda loss: backward(loss * factor))


def middle_block(model: Network) -> gpt.Block | cnn.Block:
    """The block in the middle, so that a finding has to name a place inside the network."""
    block = model.blocks[len(model.blocks) // 2]
    assert isinstance(block, gpt.Block | cnn.Block)
    return block


def set_scale(trainer: Trainer, scale: float) -> None:
    """Sets the scale where it is stored: update(new_scale) counts as an update, load_state_dict() as a resume."""
    trainer.scaler._init_scale = scale
    if trainer.scaler._scale is not None:
        trainer.scaler._scale.fill_(scale)


def cast_state(optimizer: Optimizer, dtype: torch.dtype) -> None:
    """Casts the state of every weight, except the count of steps."""
    for state in optimizer.state.values():
        state |= {name: value.to(dtype) for name, value in state.items() if isinstance(value, Tensor) and value.dim()}
