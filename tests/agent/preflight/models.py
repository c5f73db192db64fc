"""Factories for `ammeter stress` and `ammeter probe`: of healthy models, of broken ones, and of none."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from torch.nn import functional

torch.set_num_threads(1)


class Block(torch.nn.Module):
    """Attention written by hand, as in many tutorials."""

    def __init__(self, width: int, sharpness: float) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.sharpness = sharpness

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = (self.sharpness * q) @ (self.sharpness * k).transpose(1, 2)
        output: torch.Tensor = x + self.out(torch.softmax(scores / q.shape[-1] ** 0.5, -1) @ v)
        return output


class Transformer(torch.nn.Module):
    def __init__(self, width: int = 32, depth: int = 2, sharpness: float = 1.0) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(50, width)
        self.blocks = torch.nn.ModuleList([Block(width, sharpness) for _ in range(depth)])
        self.head = torch.nn.Linear(width, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def _next_token(output: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), torch.arange(output.shape[0] * output.shape[1]) % 50)


def transformer(batch_size: int = 4, depth: int = 2, width: int = 32) -> Any:
    return Transformer(width, depth), torch.randint(50, (batch_size, 16)), _next_token


def sharp_transformer(batch_size: int = 4, depth: int = 2) -> Any:
    """Queries and keys are so large that their product overflows in float16."""
    return Transformer(depth=depth, sharpness=150.0), torch.randint(50, (batch_size, 16)), _next_token


def mlp(batch_size: int = 16) -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.GELU(), torch.nn.Linear(32, 5))
    return (
        model,
        torch.randn(batch_size, 20),
        lambda output: functional.cross_entropy(output, torch.arange(batch_size) % 5),
    )


def convnet(batch_size: int = 4) -> Any:
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        *(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5)),
    )
    return model, torch.randn(batch_size, 3, 16, 16)


class OwnNorm(torch.nn.Module):
    """An RMS norm by hand, whose squares overflow in float16 if the input is large, and whose eps float16 loses."""

    def __init__(self, size: float, *, in_float32: bool = False) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(256, 256)
        self.size, self.in_float32 = size, in_float32

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.size * self.linear(x)
        if self.in_float32:
            with torch.autocast("cpu", enabled=False):
                return self._normed(x.float())
        return self._normed(x)

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return x / (x.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()


def own_norm() -> Any:
    return OwnNorm(1.0), torch.randn(8, 256)


def large_own_norm() -> Any:
    return OwnNorm(600.0), torch.randn(8, 256)


def large_own_norm_in_float32() -> Any:
    return OwnNorm(600.0, in_float32=True), torch.randn(8, 256)


class Encoder(torch.nn.Module):
    """torch's own modules, whose operators the program does not call itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layer(x, src_mask=mask).mean()}


def encoder() -> Any:
    return Encoder(), {"x": torch.randn(2, 6, 16), "mask": torch.full((6, 6), -torch.inf).triu(1)}


def bare() -> Any:
    return Transformer()


def nothing() -> Any:
    return 3


def with_loss_of_type_int() -> Any:
    return *mlp()[:2], 7


def needing(width: int) -> Any:
    return mlp()


def raising() -> Any:
    raise RuntimeError("no data set here")


def killed(batch_size: int = 1) -> Any:
    if batch_size > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return mlp(batch_size)


def endless(batch_size: int = 1) -> Any:
    if batch_size > 1:
        time.sleep(600)
    return mlp(batch_size)


def out_of_memory(batch_size: int = 1) -> Any:
    if batch_size > 1:
        raise MemoryError("planted")
    return mlp(batch_size)


not_callable = 5
