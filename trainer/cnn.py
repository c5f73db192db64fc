"""A small convolutional network with BatchNorm: blocks of two residual branches, attention pooling, a linear head.

Every layer is a named submodule, the activation too, so a finding can name any of them by its path. On a CPU torch
convolves in float16 too, but takes four times as long as in float32 or bfloat16.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. Multiples of 8 let tensor cores compute every matrix product."""

    classes: int
    layers: int
    width: int
    dropout: float = 0.0


class Pointwise(nn.Module):
    """Pixel-wise network, four times as many channels inside: (batch, channels, height, width) in and out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc = nn.Conv2d(width, 4 * width, 1)
        self.activation: nn.Module = nn.ReLU()
        self.proj = nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(self.activation(self.fc(x)))
        return y


class Block(nn.Module):
    """One layer: a convolution and a pixel-wise network, each with pre-normalisation and a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1 = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm_2 = nn.BatchNorm2d(width)
        self.mlp = Pointwise(width)

    @property
    def mixes(self) -> nn.Conv2d:
        """The last layer that mixes pixels."""
        return self.conv

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.conv(self.norm_1(x))
        y: Tensor = x + self.mlp(self.norm_2(x))
        return y


class Pool(nn.Module):
    """Attention pooling: the mean over pixels with learnt weights, from (batch, width, ...) to (batch, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(2).transpose(1, 2)
        y: Tensor = (pixels * self.weights(pixels)).sum(1)
        return y

    def weights(self, pixels: Tensor) -> Tensor:
        """Weights of the mean: (batch, pixels, 1), in sum 1."""
        weights: Tensor = self.softmax(self.score(pixels))
        return weights


class CNN(nn.Module):
    """Classifies images. Its output is the mean cross-entropy of the predictions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, shape.width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.norm = nn.BatchNorm2d(shape.width)
        self.pool = Pool(shape.width)
        self.dropout = nn.Dropout(shape.dropout)
        self.head = nn.Linear(shape.width, shape.classes)

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """Loss in nats per image, a float32 scalar, for images of shape (batch, 1, height, width)."""
        x = self.stem(images.to(self.stem.weight.dtype))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.dropout(self.pool(torch.relu(self.norm(x)))))
        # float32 here on every device: on CPU, autocast would leave the softmax in half precision.
        return cross_entropy(logits.float(), targets)

    def size(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.parameters())
