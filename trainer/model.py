"""A character-level GPT: embeddings, blocks of causal attention and a feed-forward net, a linear head.

Every layer is a named submodule, also the activation, so that a finding can point at the place by its path.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


@dataclass(frozen=True)
class Shape:
    """The sizes of the network. Multiples of 8 let tensor cores take every matmul."""

    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    dropout: float = 0.0


class Attention(nn.Module):
    """Mixes every position with those before it: (batch, time, width) in and out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.dropout = shape.dropout
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.proj = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        y: Tensor = self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        return y


class FeedForward(nn.Module):
    """Thinks about every position by itself, four times as wide: (batch, time, width) in and out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(shape.width, 4 * shape.width)
        self.activation: nn.Module = nn.GELU()
        self.proj = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(self.activation(self.fc(x)))
        return y


class Block(nn.Module):
    """One layer: attention and feed-forward, each on a normalised copy and added back."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.mlp = FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    @property
    def mixes(self) -> nn.Linear:
        """The last layer that looks beyond one position."""
        return self.attention.proj

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        y: Tensor = x + self.dropout(self.mlp(self.norm_2(x)))
        return y


class GPT(nn.Module):
    """Guesses every next character from those before it. What comes out is the mean cross-entropy of the guesses."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(start_small)
        for name, weight in self.named_parameters():
            if name.endswith("proj.weight"):  # the residual stream sums 2 x layers of these: keep its variance (GPT-2)
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss in nats per character, a float32 scalar, for int64 inputs and targets of shape (batch, time)."""
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        # float32 here on every device: on CPU, autocast would leave the softmax in half precision.
        return cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def size(self) -> int:
        """The number of weights."""
        return sum(weight.numel() for weight in self.parameters())


def start_small(module: nn.Module) -> None:
    """GPT-2's start: weights from N(0, 0.02), biases zero, so the first loss is close to log(vocabulary)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
