"""Losses with graphs of several sizes, whose forward or backward pass makes NaN or Inf."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

Spoil = Callable[[Tensor], Tensor]


class Graph(NamedTuple):
    """A training whose last operator is chosen.

    Attributes:
        loss: computes a loss, with this function between the model and the mean.
        elements: of the operand of that function.
    """

    name: str
    loss: Callable[[Spoil], Tensor]
    elements: int


def healthy(x: Tensor) -> Tensor:
    return x.square()


def bad_forward(x: Tensor) -> Tensor:
    """The logarithm of negative numbers, from operands that autograd saves."""
    return torch.log(x)


def bad_backward(x: Tensor) -> Tensor:
    """The root of zero, whose derivative is infinite."""
    return torch.sqrt(torch.relu(x - 1e9))


def graphs() -> list[Graph]:
    torch.manual_seed(0)
    return [_perceptron(), _encoder(), _loop(), _wide()]


def _perceptron() -> Graph:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 16))
    batch = torch.randn(32, 64)
    return Graph("perceptron of 2 layers", lambda spoil: spoil(model(batch)).mean(), 32 * 16)


def _encoder() -> Graph:
    layer = nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True)
    model, batch = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), torch.randn(8, 64, 128)
    return Graph("encoder of 6 layers", lambda spoil: spoil(model(batch)).mean(), 8 * 64 * 128)


def _loop() -> Graph:
    cell, batch = nn.Linear(32, 32), torch.randn(16, 32)

    def loss(spoil: Spoil) -> Tensor:
        state = batch
        for _ in range(1000):
            state = state + 0.01 * torch.tanh(cell(state))
        return spoil(state).mean()

    return Graph("loop of 1,000 cells", loss, 16 * 32)


def _wide() -> Graph:
    model, batch = nn.Linear(256, 2048), torch.randn(1024, 256)
    return Graph("one layer, 2 million outputs", lambda spoil: spoil(model(batch)).mean(), 1024 * 2048)
