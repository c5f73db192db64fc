"""Small models of several kinds, trained in any precision, with their gradients at each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

import ammeter
from ammeter.whatif.histogram import Histogram, histogram_of
from tests.agent.training import events, stream

STEPS = 16

Batch = tuple[torch.Tensor, torch.Tensor]


class Subject(NamedTuple):
    """A model and its batches."""

    model: Callable[[int], nn.Module]
    batch: Callable[[torch.Generator], Batch]


class Transformer(nn.Module):
    """Attention without a bias of the keys, whose gradient is zero but for rounding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.norm, self.last_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        x = x + self.down(nn.functional.gelu(self.up(self.last_norm(x))))
        logits: torch.Tensor = self.head(x)[:, 0]
        return logits


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


def convnet(width: int) -> nn.Module:
    """Without a bias before BatchNorm, whose gradient is zero but for rounding."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 10),
    )  # fmt: skip


SUBJECTS = {
    "mlp": Subject(mlp, lambda random: (torch.randn(16, 32, generator=random), _labels(10, 16, random))),
    "convnet": Subject(convnet, lambda random: (torch.randn(8, 3, 16, 16, generator=random), _labels(10, 8, random))),
    "transformer": Subject(
        Transformer, lambda random: (torch.randint(500, (8, 16), generator=random), _labels(500, 8, random))
    ),
}


class Trained(NamedTuple):
    """What a run recorded; the gradients of each step, multiplied by the loss scale, and the weights before it."""

    readings: list[tuple[int, str, Histogram]]
    gradients: list[dict[str, torch.Tensor]]
    weights: list[dict[str, torch.Tensor]]


def train(
    folder: Path,
    kind: str,
    width: int,
    seed: int,
    precision: str,
    scale: float = 1.0,
    of: str = "gradient",
    steps: int = STEPS,
) -> Trained:
    """Trains with one loss scale throughout. The budget allows readings on a busy machine as well."""
    torch.manual_seed(seed)
    model, random = SUBJECTS[kind].model(width), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    half = precision == "float16"
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=10**6) if half else None
    run = ammeter.watch(model, optimizer, scaler, dir=folder, budget=1.0)
    gradients, weights = [], []
    for _ in range(steps):
        inputs, labels = SUBJECTS[kind].batch(random)
        optimizer.zero_grad()
        with torch.autocast("cpu", getattr(torch, precision), enabled=precision != "float32"):
            loss = nn.functional.cross_entropy(model(inputs).float(), labels)
        (scaler.scale(loss) if scaler else loss).backward()  # type: ignore[no-untyped-call]
        gradients.append(
            {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
        )
        weights.append({name: value.detach().clone() for name, value in model.named_parameters()})
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
    run.close()
    written = events(stream(run.id, folder)[1], "tensor.exponents")
    entries = [
        (event.step, *entry)
        for event in written if event.data["of"] == of
        for entry in [histogram_of(event.step, event.data["scale"], entry) for entry in event.data["tensors"]] if entry
    ]  # fmt: skip
    return Trained(entries, gradients, weights)


def _labels(classes: int, count: int, random: torch.Generator) -> torch.Tensor:
    return torch.randint(classes, (count,), generator=random)
