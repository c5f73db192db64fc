"""Faults in the order of calls: scale, backward, unscale_, clip, step, update, zero_grad, schedule."""

from collections.abc import Callable
from copy import deepcopy
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

import ddp
from ammeter.verdicts.call_order.lopsided_step import MIN_MORE_STEPS as LOPSIDED_STEPS
from ammeter.verdicts.call_order.lopsided_step import MIN_SHARE as LOPSIDED_SHARE
from ammeter.verdicts.call_order.scheduler_ahead import MIN_MOVES as SKIPPED_MOVES
from cnn import CNN
from faults.inject import around, middle_block, replace, set_scale, watch_instead
from faults.registry import Expected, fault
from train import Trainer

TOO_HIGH_SCALE = 2.0**26
PENALTY = 1e-2


@fault(precisions=("fp16",), optimizers=("sgd",), expected=Expected(line_in="faults.call_order:clip_before_unscale"))
def clip_before_unscale(trainer: Trainer) -> None:
    """The loss hardly moves although every step is applied: the limit is put on the scaled gradients and unscaling
    then divides what is left by the scale. Trained with SGD; Adam, which does not mind small gradients, hides it."""

    def clip_scaled_gradients() -> None:
        clip_grad_norm_(trainer.model.parameters(), trainer.options.clip)
        trainer.scaler.step(trainer.optimizer)
        trainer.scaler.update()

    replace(trainer, apply_gradients=clip_scaled_gradients)


@fault(precisions=("fp16",), optimizers=("sgd",), expected=Expected(line_in="faults.call_order:loss_not_scaled"))
def loss_not_scaled(trainer: Trainer) -> None:
    """The loss hardly moves although every step is applied: backward() is called on the loss as it is, and the scaler
    then divides the gradients by a scale they never had. Trained with SGD; Adam hides it until gradients underflow."""

    def discard_the_scaled_loss(loss: Tensor) -> None:
        trainer.scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    replace(trainer, backward=discard_the_scaled_loss)


@fault(
    first_step=20,
    precisions=("fp16",),
    optimizers=("sgd",),
    expected=Expected(line_in="faults.call_order:gradients_not_unscaled"),
)
def gradients_not_unscaled(trainer: Trainer) -> None:
    """From one step on the loss explodes and is soon NaN: the loss is scaled, but the optimizer is stepped by itself,
    so its gradients are 65536 times too large. Trained with SGD; Adam divides the scale out again and hides it."""

    def step_past_the_scaler() -> None:
        trainer.optimizer.step()

    replace(trainer, apply_gradients=step_past_the_scaler)


@fault(first_step=20, precisions=("fp16",), expected=Expected(line_in="faults.call_order:mixed_scale_gradients"))
def mixed_scale_gradients(trainer: Trainer) -> None:
    """From one step on the loss falls no more: a penalty on large weights has a backward() of its own, correctly
    scaled, but after unscale_(), so that it counts 65536-fold and outweighs the gradients of the batch."""

    def penalise_after_unscaling() -> None:
        model, scaler = trainer.model, trainer.scaler
        scaler.unscale_(trainer.optimizer)
        penalty = PENALTY * torch.stack([weight.square().sum() for weight in model.parameters()]).sum()
        scaler.scale(penalty).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(model.parameters(), trainer.options.clip)
        scaler.step(trainer.optimizer)
        scaler.update()

    replace(trainer, apply_gradients=penalise_after_unscaling)


@fault(precisions=("fp16",), expected=Expected(line_in="faults.call_order:update_between_optimizers"))
def update_between_optimizers(trainer: Trainer) -> None:
    """The scale grows after half as many steps as it should, and each time the second of two optimizers gets half its
    gradients: update() is called after the step of each, and not once after those of both."""
    trainer.scaler.set_growth_interval(41)

    def update_after_each(optimizers: list[Optimizer]) -> None:
        scaler = trainer.scaler
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
            clip_grad_norm_(weights_of(optimizer), trainer.options.clip)
            scaler.step(optimizer)
            scaler.update()

    train_in_halves(trainer, update_after_each)


@fault(first_step=20, precisions=("fp16",), expected=Expected(line_in="train:Trainer.apply_gradients"))
def gradients_not_reset(trainer: Trainer) -> None:
    """After one step that is skipped, as it happens when the scale has grown too far, every other one is skipped too
    and the scale only falls: gradients are reset where a step was applied, so the NaN of that one stays in them."""
    set_scale(trainer, TOO_HIGH_SCALE)
    optimizer, scale_before, was_skipped = trainer.optimizer, 0.0, False

    def remember_the_scale() -> None:
        nonlocal scale_before
        scale_before = trainer.scaler.get_scale()

    def compare_the_scale() -> None:
        nonlocal was_skipped
        was_skipped = trainer.scaler.get_scale() < scale_before

    def zero_grad_if_applied() -> None:
        if not was_skipped:
            type(optimizer).zero_grad(optimizer)

    around(trainer, remember_the_scale, compare_the_scale)
    replace(optimizer, zero_grad=zero_grad_if_applied)


@fault(
    precisions=("fp16",),
    expected=Expected(symptom="skipped", within=round(LOPSIDED_STEPS / LOPSIDED_SHARE)),
)
def lopsided_step(trainer: Trainer) -> None:
    """The network trains on in parts: once in 31 steps one of two optimizers is skipped and the other steps. A gradient
    of the one is computed with 64 times the scale, in float16, where 65536 is infinite, and the scale keeps growing to
    1024, which all other gradients bear."""
    scaler = trainer.scaler
    set_scale(trainer, 2.0**9)
    scaler.set_growth_interval(30)

    def with_the_scale_in_float16(gradient: Tensor) -> Tensor:
        scale = scaler._scale
        assert scale is not None
        return gradient / (64 * scale) * (64 * scale).half()

    def step_both_then_update(optimizers: list[Optimizer]) -> None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
            clip_grad_norm_(weights_of(optimizer), trainer.options.clip)
            scaler.step(optimizer)
        scaler.update()

    trainer.model.head.weight.register_hook(with_the_scale_in_float16)  # type: ignore[no-untyped-call]
    train_in_halves(trainer, step_both_then_update)


@fault(first_step=20, precisions=("fp16",), expected=Expected(within=SKIPPED_MOVES))
def scheduler_ahead(trainer: Trainer) -> None:
    """The learning rate falls while every step is skipped: the schedule moves on in any case. The scale was set to 2^40
    by hand, which costs two dozen steps, and would cost no more than these."""
    set_scale(trainer, 2.0**40)
    adjust_learning_rate = trainer.adjust_learning_rate
    replace(trainer, adjust_learning_rate=lambda _: adjust_learning_rate(True))


@fault(precisions=("bf16", "fp32"), expected=Expected(within=4))
def no_gradients(trainer: Trainer) -> None:
    """The loss stays where it began, without an error, because no weight has a gradient when the optimizer steps. The
    transformer is copied after its optimizer was created, which still has the old weights; the convolutional network's
    loss is detached, and requires_grad_() hides the error that this raises."""
    backward = trainer.backward
    if isinstance(trainer.model, CNN):
        replace(trainer, backward=lambda loss: backward(loss.detach().requires_grad_()))
        return
    trainer.model = deepcopy(trainer.model)
    if hasattr(trainer, "network"):
        trainer.network = ddp.wrap(trainer.model)


@fault(
    first_step=20,
    precisions=("fp16", "bf16"),
    expected=Expected(
        names=lambda model: [middle_block(model).mlp.activation], line_in="faults.call_order:Gate.forward"
    ),
)
def unsupported_op(trainer: Trainer) -> None:
    """The run ends in its forward pass with an error about dtypes: a custom operator leaves autocast, and multiplies
    its input in half precision by a matrix in float32."""
    mlp = middle_block(trainer.model).mlp
    mlp.activation = Gate(mlp.activation)


class Gate(nn.Module):
    """An activation with a mixed input. A cast with x.float() would mend it, and so would autocast."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        mix = torch.eye(x.shape[-1], device=x.device)
        with torch.autocast(x.device.type, enabled=False):
            mixed = torch.matmul(x, mix)
        y: Tensor = self.activation(mixed)
        return y


StepBoth: TypeAlias = Callable[[list[Optimizer]], None]


def train_in_halves(trainer: Trainer, step_both: StepBoth) -> None:
    """Splits the optimizer in two of one kind, which Ammeter watches if it does not watch yet."""
    first, second = trainer.optimizer, second_half(trainer.optimizer)

    def apply_gradients() -> None:
        second.param_groups[0]["lr"] = first.param_groups[0]["lr"]  # the schedule has only the first
        step_both([first, second])
        second.zero_grad()

    watch_instead(trainer, optimizer=[first, second])
    replace(trainer, apply_gradients=apply_gradients)


def second_half(optimizer: Optimizer) -> Optimizer:
    """Moves the second half of the weights, and their state, to a new optimizer of the same kind."""
    (group,) = optimizer.param_groups
    weights = group["params"]
    middle = len(weights) // 2
    other = type(optimizer)([group | {"params": weights[middle:]}], lr=group["lr"])  # type: ignore[call-arg]
    group["params"] = weights[:middle]
    for weight in weights[middle:]:
        if weight in optimizer.state:
            other.state[weight] = optimizer.state.pop(weight)
    return other


def weights_of(optimizer: Optimizer) -> list[Tensor]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]
