"""A character-level GPT: embeddings, blocks of causal attention and a feed-forward net, a linear head.

Every layer is a named submodule, the activation too, so a finding can name any of them by its path.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. Multiples of 8 let tensor cores compute every matrix product."""

    vocabulary: int
    context: int
    layers: int
    heads: int
    width: int
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal self-attention: (batch, time, width) in and out."""

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
    """Position-wise network, four times as wide inside: (batch, time, width) in and out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.fc = nn.Linear(shape.width, 4 * shape.width)
        self.activation: nn.Module = nn.GELU()
        self.proj = nn.Linear(4 * shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.proj(self.activation(self.fc(x)))
        return y


class Block(nn.Module):
    """One layer: attention and feed-forward, each with pre-normalisation and a residual connection."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.mlp = FeedForward(shape)
        self.dropout = nn.Dropout(shape.dropout)

    @property
    def mixes(self) -> nn.Linear:
        """The last layer that mixes positions."""
        return self.attention.proj

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.norm_1(x)))
        y: Tensor = x + self.dropout(self.mlp(self.norm_2(x)))
        return y


class GPT(nn.Module):
    """Predicts each next character. Its output is the mean cross-entropy of the predictions."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.position = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.apply(init_weights)
        for name, weight in self.named_parameters():
            if name.endswith("proj.weight"):  # the residual stream sums 2 x layers of these: keep its variance (GPT-2)
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Loss in nats per character, a float32 scalar, for int64 inputs and targets of shape (batch, time)."""
        x = self.token(inputs) + self.position(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        # float32 here on every device: on CPU, autocast would leave the softmax in half precision.
        return cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    def size(self) -> int:
        """Number of weights."""
        return sum(weight.numel() for weight in self.parameters())


def init_weights(module: nn.Module) -> None:
    """Initialises as GPT-2: weights from N(0, 0.02), biases zero. The first loss is about log(vocabulary)."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
