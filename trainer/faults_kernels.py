"""Faults that cost speed and nothing else: the run learns as before, so no loss and no gradient shows them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, linear, pad
from torch.torch_version import TorchVersion

from breaking import Faults, Network, Told, fault, middle_block
from cnn import CNN, Pointwise


@fault(
    precisions=("fp16", "bf16"),
    told=Told(
        names=lambda model: [middle_block(model).mlp.fc, middle_block(model).mlp.proj], counted="low_precision_share"
    ),
)
def fp32_fallback(training: Faults) -> None:
    """It learns as before and no number is wrong, only AMP brings less than it should: somebody once chased a NaN in
    the middle block's feed-forward net, switched autocast off there, and left it off."""
    become(middle_block(training.model).mlp, InFloat32)


class InFloat32(nn.Module):
    """A module that leaves autocast for its products."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y: Tensor = super().forward(x.float())
        return y


@fault(precisions=("fp16", "bf16"), told=Told(names=lambda model: [misaligned(model)], counted="low_precision_share"))
def misaligned_matmul(training: Faults) -> None:
    """It learns as before, but on a GPU one part is slow: three words were added to the vocabulary, which makes 131, or
    three channels to the middle block of a convolutional network, and tensor cores want a multiple of 8. The new ones
    are never used."""
    if isinstance(training.model, CNN):
        middle_block(training.model).mlp.__class__ = PointwiseWithThreeMore
    else:
        training.model.head.__class__ = HeadWithThreeMore


def misaligned(model: Network) -> nn.Module:
    return middle_block(model).mlp if isinstance(model, CNN) else model.head


class HeadWithThreeMore(nn.Linear):
    """Also guesses how likely three words are that nobody has used yet."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, torch.cat([self.weight, self.weight.new_zeros(3, self.in_features)]))


class PointwiseWithThreeMore(Pointwise):
    """Also has three channels inside that see nothing and say nothing."""

    def forward(self, x: Tensor) -> Tensor:
        fc, proj = self.fc, self.proj
        assert fc.bias is not None
        wider = conv2d(x, pad(fc.weight, (0, 0, 0, 0, 0, 0, 0, 3)), pad(fc.bias, (0, 3)))
        return conv2d(self.activation(wider), pad(proj.weight, (0, 0, 0, 0, 0, 3)), proj.bias)


@fault(precisions=("fp16", "bf16"), told=Told(counted="low_precision_share"))
def cast_churn(training: Faults) -> None:
    """It learns as before, but each step takes longer: to save memory the middle block's feed-forward net looks at one
    position, or row of the image, after the other, and the cache of cast weights is off, so that its weights are cast
    for each of them."""
    become(middle_block(training.model).mlp, ByPosition)


class ByPosition(nn.Module):
    """A module that goes through the positions one by one, below an autocast that keeps no cast weight."""

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        half, on = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        one = super().forward
        with torch.autocast(device, half, enabled=on, cache_enabled=False):
            return torch.cat([one(each) for each in x.chunk(x.shape[-2], dim=-2)], dim=-2)


def become(module: nn.Module, kind: type[nn.Module]) -> None:
    """What it was, with the forward() of the kind around its own. It stays the same object."""
    module.__class__ = type(kind.__name__, (kind, type(module)), {})


@fault()
def stale_stack(_: Faults) -> None:
    """It learns, with the kernels and the mistakes of years ago: the image that the run starts in carries an old torch.
    Here it is the present one, which only says of itself that it were 2.1.2."""
    torch.__version__ = TorchVersion("2.1.2")
