"""Faults in the order of calls: backward, unscale, step, update and reset, each in the right place but one."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ammeter.verdicts.call_order import lopsided_step as lopsided_step_verdict
from breaking import Attempt, Faults, Told, fault

TOO_HIGH = 2.0**26  # a scale that the gradients do not bear
PENALTY = 1e-2


@fault(precisions=("fp16",), optimizers=("sgd",), told=Told(line_in="train.py:main"))
def loss_not_scaled(training: Faults) -> None:
    """The loss hardly moves although every step is applied: backward() is called on the loss as it is, and the scaler
    then divides the gradients by a scale they never had. Trained with SGD; Adam hides it until gradients underflow."""
    training.scaled = lambda _, loss: loss


@fault(
    first_step=20,
    precisions=("fp16",),
    optimizers=("sgd",),
    told=Told(line_in="faults_order.py:gradients_not_unscaled"),
)
def gradients_not_unscaled(training: Faults) -> None:
    """From one step on the loss explodes and is soon NaN: the loss is scaled, but the optimizer is stepped by itself,
    so its gradients are 65536 times too large. Trained with SGD; Adam divides the scale out again and hides it."""

    def stepped_past_the_scaler(_: nn.Module, optimizer: Optimizer, __: GradScaler | None, ___: float) -> None:
        optimizer.step()

    training.attempt = lambda _: stepped_past_the_scaler


@fault(first_step=20, precisions=("fp16",), told=Told(line_in="faults_order.py:mixed_scale_gradients"))
def mixed_scale_gradients(training: Faults) -> None:
    """From one step on the loss falls no more: a penalty on large weights has a backward() of its own, scaled as is
    due, but behind unscale_(), so that it counts 65536-fold and all that the batch had to say is lost beside it."""

    def punished_after_unscaling(
        model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float
    ) -> None:
        assert scaler
        scaler.unscale_(optimizer)
        penalty = PENALTY * torch.stack([weight.square().sum() for weight in model.parameters()]).sum()
        scaler.scale(penalty).backward()  # type: ignore[no-untyped-call]
        clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()

    training.attempt = lambda _: punished_after_unscaling


@fault(precisions=("fp16",), told=Told(line_in="faults_order.py:update_between_optimizers"))
def update_between_optimizers(training: Faults) -> None:
    """The scale grows after half as many steps as it should, and each time the second of two optimizers gets half its
    gradients: update() is called behind the step of each, and not once behind those of both."""
    assert training.scaler
    training.scaler.set_growth_interval(41)

    def updated_after_each(optimizers: list[Optimizer], scaler: GradScaler, clip: float) -> None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
            clip_grad_norm_(weights_of(optimizer), clip)
            scaler.step(optimizer)
            scaler.update()

    break_in_halves(training, updated_after_each)


@fault(first_step=20, precisions=("fp16",), told=Told(line_in="train.py:attempt"))
def gradients_not_reset(training: Faults) -> None:
    """After one step that is skipped, as it happens when the scale has grown too far, every other one is skipped too
    and the scale only falls: gradients are reset where a step was applied, so the NaN of that one stays in them."""
    start_at(training.scaler, TOO_HIGH)
    was_skipped = False

    def remembered(attempt: Attempt) -> Attempt:
        def attempts(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            nonlocal was_skipped
            assert scaler
            before = scaler.get_scale()
            attempt(model, optimizer, scaler, clip)
            was_skipped = scaler.get_scale() < before

        return attempts

    def reset_if_applied(reset: Callable[[], None]) -> Callable[[], None]:
        return (lambda: None) if was_skipped else reset

    training.attempt = remembered
    training.reset = reset_if_applied


@fault(
    precisions=("fp16",),
    told=Told(symptom="skipped", within=round(lopsided_step_verdict.MORE / lopsided_step_verdict.OFTEN)),
)
def lopsided_step(training: Faults) -> None:
    """The network trains on in parts: once in 31 steps one of two optimizers is skipped and the other steps. A gradient
    of the one is computed with 64 times the scale, in float16, where 65536 is infinite, and the scale keeps growing to
    1024, which all other gradients bear."""
    scaler = training.scaler
    start_at(scaler, 2.0**9)
    assert scaler
    scaler.set_growth_interval(30)

    def with_the_scale_in_float16(gradient: Tensor) -> Tensor:
        scale = scaler._scale
        assert scale is not None
        return gradient / (64 * scale) * (64 * scale).half()

    def stepped_apart(optimizers: list[Optimizer], scaler: GradScaler, clip: float) -> None:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
            clip_grad_norm_(weights_of(optimizer), clip)
            scaler.step(optimizer)
        scaler.update()

    training.model.head.weight.register_hook(with_the_scale_in_float16)  # type: ignore[no-untyped-call]
    break_in_halves(training, stepped_apart)


def start_at(scaler: GradScaler | None, scale: float) -> None:
    """Where the scale lives: update(new_scale=...) would count as one more update, load_state_dict() as a resume."""
    assert scaler
    scaler._init_scale = scale
    if scaler._scale is not None:
        scaler._scale.fill_(scale)


TogetherSteps: TypeAlias = Callable[[list[Optimizer], GradScaler, float], None]


def break_in_halves(training: Faults, attempt: TogetherSteps) -> None:
    """Attempts of two optimizers of one kind. The second one takes over half of the weights of the first."""
    halves: list[Optimizer] = []

    def split(optimizer: Optimizer) -> list[Optimizer]:
        halves.extend((optimizer, second_half(optimizer)))
        return halves

    def attempt_of_both(_: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
        assert scaler
        second = (halves or split(optimizer))[1]  # the fault may begin when the run has long been watched
        second.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"]  # the schedule knows only the first
        attempt(halves, scaler, clip)
        second.zero_grad()

    training.optimizers = split
    training.attempt = lambda _: attempt_of_both


def second_half(optimizer: Optimizer) -> Optimizer:
    """Another optimizer of the same kind that takes over the second half of the weights, and what is known of them."""
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
