"""Faults that cost speed and nothing else: the run learns as before, so no loss and no gradient shows them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.torch_version import TorchVersion

from breaking import Faults, Told, fault, middle_block
from model import FeedForward


@fault(
    precisions=("fp16", "bf16"),
    told=Told(
        names=lambda model: [middle_block(model).mlp.fc, middle_block(model).mlp.proj], counted="low_precision_share"
    ),
)
def fp32_fallback(training: Faults) -> None:
    """It learns as before and no number is wrong, only AMP brings less than it should: somebody once chased a NaN in
    the middle block's feed-forward net, switched autocast off there, and left it off."""
    middle_block(training.model).mlp.__class__ = FeedForwardInFloat32


class FeedForwardInFloat32(FeedForward):
    """Leaves autocast for its two matrix products."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


@fault(precisions=("fp16", "bf16"), told=Told(names=lambda model: [model.head], counted="low_precision_share"))
def misaligned_matmul(training: Faults) -> None:
    """It learns as before, but on a GPU the head is slow: three words were added to the vocabulary, which makes 131,
    and tensor cores want a multiple of 8. The new words never occur."""
    training.model.head.__class__ = HeadWithThreeMore


class HeadWithThreeMore(nn.Linear):
    """Also guesses how likely three words are that nobody has used yet."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, torch.cat([self.weight, self.weight.new_zeros(3, self.in_features)]))


@fault(precisions=("fp16", "bf16"), told=Told(counted="low_precision_share"))
def cast_churn(training: Faults) -> None:
    """It learns as before, but each step takes longer: to save memory the middle block's feed-forward net looks at one
    position after the other, and the cache of cast weights is off, so that its weights are cast for each of them."""
    middle_block(training.model).mlp.__class__ = FeedForwardByPosition


class FeedForwardByPosition(FeedForward):
    """Goes through the positions one by one, below an autocast that keeps no cast weight."""

    def forward(self, x: Tensor) -> Tensor:
        device = x.device.type
        half, on = torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)
        one = super().forward
        with torch.autocast(device, half, enabled=on, cache_enabled=False):
            return torch.cat([one(each) for each in x.chunk(x.shape[1], dim=1)], dim=1)


@fault()
def stale_stack(_: Faults) -> None:
    """It learns, with the kernels and the mistakes of years ago: the image that the run starts in carries an old torch.
    Here it is the present one, which only says of itself that it were 2.1.2."""
    torch.__version__ = TorchVersion("2.1.2")
