"""Faults that produce NaN or Inf in the loss, a gradient, a weight, an activation or the optimizer."""

from typing import cast

import torch
from torch import Tensor, nn

from ammeter.verdicts.framework.scale_limits import MAX_ACCIDENTAL_SKIPS as COLLAPSE_SKIPS
from ammeter.verdicts.nonfinite.poisoned_buffers import FINITE_LOSSES
from build import Network
from cnn import CNN, Pool
from data import Batch
from faults.inject import around, cast_state, middle_block, replace
from faults.registry import ORIGIN_STEPS, Expected, fault
from model import Attention, Block
from train import Trainer


@fault(first_step=20)
def nonfinite_loss(trainer: Trainer) -> None:
    """The loss is NaN from one step on, and the network learns on with finite gradients: the loss has a new term, the
    root of a negative number, through which no gradient flows."""

    def with_root(_: nn.Module, __: object, loss: Tensor) -> Tensor:
        return loss + (-loss.detach()).sqrt()

    trainer.network.register_forward_hook(with_root)


@fault(first_step=20)
def masked_labels(trainer: Trainer) -> None:
    """The loss is NaN from one step on, yet no step is skipped and nothing is learnt: after a change to the data every
    target is the ignored index, and the mean over no targets is 0/0 with gradients of zero."""
    next_batch = trainer.next_batch

    def batch_without_targets() -> Batch:
        inputs, targets = next_batch()
        return inputs, torch.full_like(targets, -100)

    replace(trainer, next_batch=batch_without_targets)


@fault(
    first_step=20,
    expected=Expected(
        names=lambda model: [middle_block(model).mlp.fc, middle_block(model).mlp.activation],
        within=COLLAPSE_SKIPS - 1,
    ),
)
def nonfinite_gradient(trainer: Trainer) -> None:
    """The loss is finite while the gradients of everything before the middle block's activation are NaN. With a scaler
    the scale then collapses; without one the weights are NaN a step later."""
    mlp = middle_block(trainer.model).mlp
    mlp.activation = DistanceGate(mlp.activation)


class DistanceGate(nn.Module):
    """An activation that the distance between neighbours opens: of positions, or of channels in an image.

    The first one has no neighbour, so its distance is zero, and there the derivative of the square root is infinite:
    Inf times zero is NaN. An eps under the root would mend it.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        before = torch.cat([x[:, :1], x[:, :-1]], dim=1)
        distance = (x - before).square().mean(-1, keepdim=True).sqrt()
        y: Tensor = self.activation(x) * (1 + torch.tanh(distance))
        return y


@fault(first_step=20, precisions=("fp16",), expected=Expected(names=lambda model: [middle_block(model).mlp.fc.weight]))
def nonfinite_weights(trainer: Trainer) -> None:
    """From one step on the loss is NaN whatever the batch, every step is skipped and the scale falls: a faulty memory
    has turned one element of one weight into NaN, which no skipped step can mend."""
    with torch.no_grad():
        middle_block(trainer.model).mlp.fc.weight[3, 5] = torch.nan


@fault(
    first_step=20,
    expected=Expected(
        names=lambda model: [middle_block(model).mlp.activation], symptom="buffers.nonfinite", within=FINITE_LOSSES
    ),
)
def poisoned_buffers(trainer: Trainer) -> None:
    """The training loss goes on as before and each validation loss is NaN: one batch with Inf has passed through a
    normalization layer, whose running averages keep it."""
    mlp = middle_block(trainer.model).mlp
    mlp.activation = Normalized(mlp.activation)
    with torch.no_grad():
        mlp.activation.norm(torch.full((2, 1), torch.inf))


class Normalized(nn.Module):
    """An activation and a normalization of all its outputs together, with running averages for evaluation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation, self.norm = activation, nn.BatchNorm1d(1, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(x)
        normalized: Tensor = self.norm(y.float().reshape(-1, 1))
        return normalized.view_as(y)


@fault(precisions=("fp32",), optimizers=("adamw",))
def eps_underflow(trainer: Trainer) -> None:
    """After one step with finite gradients most weights are NaN, and so is every loss from then on: the whole model is
    in float16, where AdamW's eps of 1e-8 is zero, so a gradient of zero is divided by zero."""
    trainer.model.half()
    around(trainer, lambda: cast_state(trainer.optimizer, torch.float16))


@fault(
    first_step=20,
    precisions=("fp16",),
    expected=Expected(names=lambda model: [softmax_of(model)], within=ORIGIN_STEPS),
)
def masked_row_nan(trainer: Trainer) -> None:
    """From one step on the loss is NaN and every step is skipped: in the middle block's attention the first sequence,
    or in the pooling the first image, counts as padding throughout, so its rows are masked from end to end and the
    softmax has nothing to divide by."""
    model, block = trainer.model, middle_block(trainer.model)
    if isinstance(model, CNN):
        model.pool = PaddedPool(model.pool)
    if isinstance(block, Block):
        block.attention = PaddedAttention(block.attention)


def softmax_of(model: Network) -> nn.Module:
    """The softmax whose rows are all masked."""
    masked = model.pool if isinstance(model, CNN) else cast(Block, middle_block(model)).attention
    softmax = masked.softmax
    assert isinstance(softmax, nn.Module)
    return softmax


class PaddedAttention(Attention):
    """Attention with a mask for padding, where the first sequence of a batch is all padding."""

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
    """Pooling with a mask for padding, where the first image of a batch is all padding."""

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
    expected=Expected(names=lambda model: [middle_block(model).mlp.activation], within=ORIGIN_STEPS),
)
def activation_overflow(trainer: Trainer) -> None:
    """From one step on the loss is NaN and every step is skipped, at any scale: the output of the middle block's
    activation has grown past 65504, where float16 ends. In bfloat16 the same network goes on."""
    mlp = middle_block(trainer.model).mlp
    mlp.activation = Loud(mlp.activation)


class Loud(nn.Module):
    """An activation times a million, as in a branch without normalisation."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(x) * 2.0**20
        return y
