"""Faults in the numbers themselves: weights, optimizer state, scale and activations that a precision cannot hold."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from ammeter.verdicts.dynamics import lost_updates as lost_updates_verdict
from breaking import ORIGIN, Attempt, Faults, Network, Told, fault, middle_block
from cnn import CNN, Pool
from model import Attention, Block


@fault(first_step=20, precisions=("fp16",), told=Told(names=lambda model: [middle_block(model).mlp.fc.weight]))
def nonfinite_weights(training: Faults) -> None:
    """From one step on the loss is NaN whatever the batch, every step is skipped and the scale falls: a faulty memory
    has turned one element of one weight into NaN, which no skipped step can mend."""
    with torch.no_grad():
        middle_block(training.model).mlp.fc.weight[3, 5] = torch.nan


@fault(first_step=20, precisions=("fp16",))
def scale_underflowed(training: Faults) -> None:
    """One step is applied as if nothing were wrong and leaves only NaN in the weights: the scaler got back the scale
    of a run that had collapsed, 2^-130, whose inverse is infinite."""
    assert training.scaler
    # Where the scale lives: update(new_scale=...) would count as one more update, and load_state_dict() as a resume.
    training.scaler._init_scale = 2.0**-130
    if training.scaler._scale is not None:
        training.scaler._scale.fill_(2.0**-130)


@fault(precisions=("fp32",), optimizers=("adamw",))
def eps_underflow(training: Faults) -> None:
    """After one step with finite gradients most weights are NaN, and so is every loss from then on: the whole model is
    in float16, where AdamW's eps of 1e-8 is zero, so a gradient of zero is divided by zero."""
    training.model.half()
    training.attempt = with_state_in(torch.float16)


def with_state_in(dtype: torch.dtype) -> Callable[[Attempt], Attempt]:
    """Attempts before which the optimizer's state, as far as there is any, is cast."""

    def cast_before(attempt: Attempt) -> Attempt:
        def cast_and_step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            cast_state(optimizer, dtype)
            attempt(model, optimizer, scaler, clip)

        return cast_and_step

    return cast_before


@fault(told=Told(within=lost_updates_verdict.READINGS * lost_updates_verdict.SPAN))
def lost_updates(training: Faults) -> None:
    """The loss falls as it should, but the average of the weights, which is to be deployed, stays what it was at the
    first step: it is kept in bfloat16, where a hundred-thousandth of the difference is rounded away."""
    average = Average(training.model)

    def averaged(attempt: Attempt) -> Attempt:
        def attempt_and_average(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            attempt(model, optimizer, scaler, clip)
            average.update_parameters(model)

        return attempt_and_average

    training.attempt = averaged


class Average(AveragedModel):
    """Every step the average takes over a hundred-thousandth of the weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, avg_fn=lambda mine, weight, _: mine.lerp(weight.to(mine.dtype), 1e-5))
        self.module.to(torch.bfloat16)


@fault(optimizers=("adamw",))
def half_optimizer_state(training: Faults) -> None:
    """The loss falls, but not as far as it could: to save memory AdamW's moments are kept in bfloat16 between steps,
    where the second one, which moves slowly, often cannot move at all."""
    hooked: set[int] = set()

    def keeping_state_in_half(attempt: Attempt) -> Attempt:
        def step(model: nn.Module, optimizer: Optimizer, scaler: GradScaler | None, clip: float) -> None:
            if id(optimizer) not in hooked:
                hooked.add(id(optimizer))
                optimizer.register_step_pre_hook(lambda each, *_: cast_state(each, torch.float32))
                optimizer.register_step_post_hook(lambda each, *_: cast_state(each, torch.bfloat16))
            attempt(model, optimizer, scaler, clip)

        return step

    training.attempt = keeping_state_in_half


def cast_state(optimizer: Optimizer, dtype: torch.dtype) -> None:
    for state in optimizer.state.values():
        state |= {name: each.to(dtype) for name, each in state.items() if isinstance(each, Tensor) and each.dim()}


@fault(
    first_step=20,
    precisions=("fp16",),
    told=Told(names=lambda model: [softmax_of(model)], within=ORIGIN),
)
def masked_row_nan(training: Faults) -> None:
    """From one step on the loss is NaN and every step is skipped: in the middle block's attention the first sequence,
    or in the pooling the first image, counts as padding throughout, so its rows are masked from end to end and the
    softmax has nothing to divide by."""
    model, block = training.model, middle_block(training.model)
    if isinstance(model, CNN):
        model.pool = PaddedPool(model.pool)
    if isinstance(block, Block):
        block.attention = PaddedAttention(block.attention)


def softmax_of(model: Network) -> nn.Module:
    """What is given rows that are masked throughout."""
    weighs = model.pool if isinstance(model, CNN) else cast(Block, middle_block(model)).attention
    softmax = weighs.softmax
    assert isinstance(softmax, nn.Module)
    return softmax


class PaddedAttention(Attention):
    """The same attention written out, with a mask for padding; the first sequence of a batch is all padding."""

    def __init__(self, attention: Attention) -> None:
        nn.Module.__init__(self)
        self.heads, self.dropout = attention.heads, attention.dropout
        self.qkv, self.proj, self.softmax = attention.qkv, attention.proj, nn.Softmax(dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        hidden = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1).repeat(batch, 1, 1, 1)
        hidden[0] = True
        scores = (q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5).masked_fill(hidden, -torch.inf)
        y: Tensor = self.proj((self.softmax(scores) @ v).transpose(1, 2).reshape(batch, time, width))
        return y


class PaddedPool(Pool):
    """The same pooling, with a mask for padding; the first image of a batch is all padding."""

    def __init__(self, pool: Pool) -> None:
        nn.Module.__init__(self)
        self.score, self.softmax = pool.score, nn.Softmax(dim=1)

    def weights(self, pixels: Tensor) -> Tensor:
        hidden = torch.zeros(*pixels.shape[:2], 1, dtype=torch.bool, device=pixels.device)
        hidden[0] = True
        weights: Tensor = self.softmax(self.score(pixels).masked_fill(hidden, -torch.inf))
        return weights


@fault(
    first_step=20,
    precisions=("fp16",),
    told=Told(names=lambda model: [middle_block(model).mlp.activation], within=ORIGIN),
)
def activation_overflow(training: Faults) -> None:
    """From one step on the loss is NaN and every step is skipped, at any scale: what the middle block's activation
    gives has grown past 65504, where float16 ends. In bfloat16 the same network goes on."""
    mlp = middle_block(training.model).mlp
    mlp.activation = Loud(mlp.activation)


class Loud(nn.Module):
    """An activation times a million, as a branch without a normalisation may come to."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(x) * 2.0**20
        return y
