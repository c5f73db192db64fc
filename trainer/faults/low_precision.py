"""Faults that cost only speed: the run learns as before, so no loss and no gradient shows them."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.torch_version import TorchVersion

from cnn import CNN
from faults.inject import middle_block, replace
from faults.registry import Expected, fault
from train import Trainer


@fault(
    precisions=("fp16", "bf16"),
    expected=Expected(
        names=lambda model: [middle_block(model).mlp.fc, middle_block(model).mlp.proj], counted="low_precision_share"
    ),
)
def fp32_fallback(trainer: Trainer) -> None:
    """It learns as before and no number is wrong, only AMP brings less than it should: somebody once chased a NaN in
    the middle block's feed-forward net, switched autocast off there, and left it off."""
    become(middle_block(trainer.model).mlp, InFloat32)


class InFloat32(nn.Module):
    """A module that computes outside of autocast."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y: Tensor = super().forward(x.float())
        return y


@fault(precisions=("fp16", "bf16"), expected=Expected(counted="low_precision_share"))
def cast_churn(trainer: Trainer) -> None:
    """It learns as before, but each step takes longer: to save memory the middle block's feed-forward net looks at one
    position, or row of the image, after the other, and the cache of cast weights is off, so that its weights are cast
    for each of them."""
    become(middle_block(trainer.model).mlp, ByPosition)


class ByPosition(nn.Module):
    """A module that computes the positions one by one, under an autocast without a cache of weights."""

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        half, on = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        forward = super().forward
        with torch.autocast(device, half, enabled=on, cache_enabled=False):
            return torch.cat([forward(position) for position in x.chunk(x.shape[-2], dim=-2)], dim=-2)


def become(module: nn.Module, kind: type[nn.Module]) -> None:
    """Puts the forward() of a class around that of a module, which stays the same object."""
    module.__class__ = type(kind.__name__, (kind, type(module)), {})


@fault(
    precisions=("fp16", "bf16"),
    expected=Expected(line_in="faults.low_precision:not_as_asked", within=8),
)
def not_as_asked(trainer: Trainer) -> None:
    """It learns as in float32, and is neither faster nor smaller: autocast is for CUDA and the network on the CPU, or,
    for convolutional networks in float16, a flag that is off disables autocast while the scaler is enabled."""
    half = torch.float16 if trainer.options.precision == "fp16" else torch.bfloat16
    scaled = trainer.scaler.is_enabled()

    def autocast_that_has_no_effect() -> torch.autocast:
        if isinstance(trainer.model, CNN) and scaled:
            return torch.autocast(trainer.device.type, dtype=half, enabled=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # without CUDA torch warns in every step
            return torch.autocast("cuda", dtype=half)

    replace(trainer, autocast=autocast_that_has_no_effect)


@fault(precisions=("fp16", "bf16"), expected=Expected(line_in="faults.low_precision:autocast_scope", within=3))
def autocast_scope(trainer: Trainer) -> None:
    """It learns as before, because backward() mostly meets tensors that are cast already: the block of autocast has
    grown around backward(), so that parts in float32 get their gradients in half precision."""
    backward = trainer.backward

    def backward_inside(loss: Tensor) -> None:
        with trainer.autocast():
            backward(loss)

    replace(trainer, backward=backward_inside)


@fault(precisions=("bf16",), expected=Expected(line_in="faults.low_precision:loss_in_half", within=3))
def loss_in_half(trainer: Trainer) -> None:
    """It learns nearly as before, but its losses have two digits: each is cast to bfloat16, like everything that is
    kept of a batch."""
    backward = trainer.backward

    def backward_in_half(loss: Tensor) -> None:
        backward(loss.bfloat16())

    replace(trainer, backward=backward_in_half)


@fault(
    precisions=("bf16",),
    expected=Expected(line_in="faults.low_precision:Positioned.angles", within=2, counted="kernels.sensitive"),
)
def sensitive_op_in_half(trainer: Trainer) -> None:
    """It learns nearly as before, but cannot tell neighbours apart: the middle block gets sines and cosines of the
    positions in a long document, whose positions and frequencies have the dtype of the activations."""
    become(middle_block(trainer.model).mlp, Positioned)


class Positioned(nn.Module):
    """A module that adds sinusoidal positions to its output, computed in bfloat16."""

    FIRST = 1000

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = super().forward(x)
        angles = self.angles(y)
        return y + 0.02 * torch.cat([angles.cos(), angles.sin()], dim=-1)

    def angles(self, like: Tensor) -> Tensor:
        positions = torch.arange(self.FIRST, self.FIRST + like.shape[-2]).to(like.dtype)
        frequencies = torch.logspace(0, -3, like.shape[-1] // 2).to(like.dtype)
        return positions[:, None] * frequencies


@fault(
    precisions=("fp16", "bf16"),
    expected=Expected(line_in="faults.low_precision:Widened.forward", within=2, counted="kernels.round_trips"),
)
def activation_casts(trainer: Trainer) -> None:
    """It learns as before, but moves more bytes: somebody wanted the middle block's feed-forward net in float32, and
    cast its input. autocast casts it straight back for the matrix product."""
    become(middle_block(trainer.model).mlp, Widened)


class Widened(nn.Module):
    """A module whose input is cast to float32, as if that made it compute in float32."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(torch.get_autocast_dtype(x.device.type))
        y: Tensor = super().forward(x.float())
        return y


@fault(
    precisions=("fp16", "bf16"),
    expected=Expected(
        line_in="faults.low_precision:RunAgain.backward",
        names=lambda model: [middle_block(model).mlp.fc, middle_block(model).mlp],
        within=3,
    ),
)
def dtype_switched(trainer: Trainer) -> None:
    """It learns as before, with gradients that are not quite those of its loss: to save memory the middle block's
    feed-forward net runs again in backward(), where autocast is off."""
    become(middle_block(trainer.model).mlp, Checkpointed)


class Checkpointed(nn.Module):
    """A module that keeps only its input, and computes the rest again in backward()."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = RunAgain.apply(super().forward, x)  # type: ignore[no-untyped-call]
        return y


class RunAgain(torch.autograd.Function):
    """Runs a function without a graph, and once more in backward(), in whatever state autocast is there."""

    @staticmethod
    def forward(ctx: Any, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor | None]:
        (saved,) = ctx.saved_tensors
        x = saved.detach().float().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, grad.to(y.dtype))
        return None, None if x.grad is None else x.grad.to(saved.dtype)


@fault()
def stale_stack(_: Trainer) -> None:
    """It learns, with the kernels and the mistakes of years ago: the image that the run starts in carries an old torch.
    Here it is the present one, with 2.1.2 as its version."""
    torch.__version__ = TorchVersion("2.1.2")
