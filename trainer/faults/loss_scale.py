"""Faults of the loss scale: too high, too low, absent, or another one than it was."""

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

from ammeter.verdicts.framework.scale_limits import MAX_ACCIDENTAL_SKIPS as COLLAPSE_SKIPS
from ammeter.verdicts.loss_scale.gradient_underflow import MIN_READINGS as UNDERFLOW_READINGS
from ammeter.verdicts.loss_scale.no_loss_scaling import UNREAD_STEPS as UNSCALED_STEPS
from ammeter.verdicts.loss_scale.overflow_storm import WINDOW_STEPS as OVERFLOW_WINDOW_STEPS
from faults.inject import imitate_large_model, middle_block, replace, resume_without, set_scale, watch_instead
from faults.registry import Expected, fault
from train import Trainer

NEVER = 2**31 - 1  # steps


@fault(precisions=("fp16",), expected=Expected(symptom="skipped", within=OVERFLOW_WINDOW_STEPS))
def overflow_storm(trainer: Trainer) -> None:
    """Two of three steps are skipped for good and the scale is a sawtooth at its ceiling: it grows fourfold after
    every good step, instead of twofold after 2000."""
    trainer.scaler.set_growth_interval(1)
    trainer.scaler.set_growth_factor(4.0)


@fault(
    first_step=20,
    precisions=("fp16",),
    expected=Expected(names=lambda model: [middle_block(model).mixes.weight], within=COLLAPSE_SKIPS),
)
def scale_collapse(trainer: Trainer) -> None:
    """From one step on every step is skipped and the scale halves each time, the loss stands still but is finite: a
    kernel writes past its buffer, so one row of one weight's gradient is Inf in every backward pass."""

    def overwrite_a_row(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[3] = torch.inf
        return gradient

    weight = middle_block(trainer.model).mixes.weight
    weight.register_hook(overwrite_a_row)  # type: ignore[no-untyped-call]


@fault(first_step=20, precisions=("fp16",))
def scale_underflowed(trainer: Trainer) -> None:
    """One step is applied as if nothing were wrong and leaves only NaN in the weights: the scaler was restored to the
    scale of a run that had collapsed, 2^-130, whose inverse is infinite."""
    set_scale(trainer, 2.0**-130)


@fault(precisions=("fp16",), expected=Expected(within=UNDERFLOW_READINGS, counted="grad_absmax"))
def gradient_underflow(trainer: Trainer) -> None:
    """The loss soon stands still although every step is applied: the scale is 1 and never grows, so that most
    gradients of a large model are below the smallest float16 and become zero."""
    set_scale(trainer, 1.0)
    trainer.scaler.set_growth_interval(NEVER)
    imitate_large_model(trainer)


@fault(precisions=("fp16",), expected=Expected(within=UNSCALED_STEPS))
def no_loss_scaling(trainer: Trainer) -> None:
    """The loss flattens early: float16 autocast without a scaler, so that most gradients of a large model are below
    the smallest float16 and become zero."""

    def clip_and_step() -> None:
        clip_grad_norm_(trainer.model.parameters(), trainer.options.clip)
        trainer.optimizer.step()

    watch_instead(trainer, scaler=None)
    replace(trainer, backward=lambda loss: loss.backward(), apply_gradients=clip_and_step)
    trainer.scaler = GradScaler(trainer.device.type, enabled=False)  # no step calls it
    imitate_large_model(trainer)


@fault(precisions=("fp16",))
def scaler_disabled(trainer: Trainer) -> None:
    """The loss flattens early although the program scales, unscales and updates as it should: the scaler was built with
    enabled=False and returns everything unchanged, so that most gradients of a large model become zero."""
    trainer.scaler = GradScaler(trainer.device.type, enabled=False)
    imitate_large_model(trainer)


@fault(precisions=("bf16",))
def pointless_scaler(trainer: Trainer) -> None:
    """It learns as well as without, only each step takes longer: a loss scale of 65536 for bfloat16, whose range is
    that of float32. The scale doubles every 2000 steps, and nothing ever brings it down."""
    trainer.scaler = GradScaler(trainer.device.type)


@fault(precisions=("fp16",), expected=Expected(life="resumed"))
def scaler_not_restored(trainer: Trainer) -> None:
    """Where the run goes on with --resume, the scale is not where it was: everything is restored from the checkpoint
    but the scaler's state, so that it begins at 65536 once more and has to grow, or to come down over skipped steps."""
    resume_without(trainer, "scaler")


@fault(first_step=20, precisions=("fp16",))
def scaler_rebuilt(trainer: Trainer) -> None:
    """In the middle of the run the scale jumps up to 2^24 and steps are skipped until it is down again: the second
    epoch builds a scaler of its own, and the scale that the first one had found is lost."""
    trainer.scaler = GradScaler(trainer.device.type, init_scale=2.0**24)
