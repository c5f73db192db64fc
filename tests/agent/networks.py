"""Small networks of different build, and a loop that trains any of them, for the probes that look at modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import ammeter
from tests.agent.training import Model, stream


class Convolutions(torch.nn.Module):
    """Takes images by keyword only, gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(inplace=True)
        )
        self.body = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, *, image: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.stem(image)
        x = torch.nn.functional.relu_(self.body(x).add_(x))
        return {"features": x, "logits": self.head(x.mean((2, 3)))}


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.project = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype))
        output: torch.Tensor = x + self.project(found)
        return output


class Mask(torch.nn.Module):
    """Gives -Inf on purpose, as masks do. With diagonal 0 the first row has nothing left to look at."""

    diagonal = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        return torch.full((length, length), float("-inf"), device=x.device).triu(self.diagonal)


@dataclass
class Answer:
    logits: torch.Tensor


class Attention(torch.nn.Module):
    """Tokens in, a dataclass out. The second block is behind a checkpoint; head and embedding share a weight."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(11, width)
        self.mask = Mask()
        self.blocks = torch.nn.ModuleList([Block(width), Block(width)])
        self.head = torch.nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> Answer:
        x = self.embed(tokens)
        mask = self.mask(x)
        x = self.blocks[0](x, mask)
        x = checkpoint(self.blocks[1], x, mask, use_reentrant=False)
        return Answer(self.head(x).mean(1))


class Twice(torch.autograd.Function):
    """A function of somebody's own, without custom_fwd, whose operator autocast does not know: float32 throughout."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x.float(), weight.t(), out=torch.empty(len(x), len(weight)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        return (grads[0].float() @ weight).to(x.dtype), grads[0].float().t() @ x.float()


class Custom(torch.nn.Module):
    """One layer is used twice, one is a function of somebody's own, one leaves autocast."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(width, width)
        self.own = torch.nn.Module()
        self.own.weight = torch.nn.Parameter(torch.randn(width, width) / width)
        self.outside = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, int]:
        x = torch.relu(self.shared(torch.relu(self.shared(x))))
        x = Twice.apply(x, self.own.weight)  # type: ignore[no-untyped-call]
        with torch.autocast(x.device.type, enabled=False):
            x = self.outside(x.float())
        return self.head(x), 7


def _logits(output: Any) -> torch.Tensor:
    if isinstance(output, dict):
        output = output["logits"]
    found = output[0] if isinstance(output, tuple) else getattr(output, "logits", output)
    assert isinstance(found, torch.Tensor)
    return found


@dataclass
class Network:
    """A model and a batch for it. inputs: its floating-point tensors lie in args or kwargs."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    layer: str
    """The path of a Linear or Conv2d in the middle of it."""

    def loss(self) -> torch.Tensor:
        logits = _logits(self.model(*self.args, **self.kwargs)).float()
        return torch.nn.functional.cross_entropy(logits, torch.arange(len(logits)) % 3)


def normal() -> Network:
    return Network(Model(), (torch.randn(8, 12),), {}, "middle")


def convolutions() -> Network:
    return Network(Convolutions(), (), {"image": torch.randn(4, 3, 8, 8)}, "body")


def attention() -> Network:
    return Network(Attention(), (torch.randint(11, (4, 6)),), {}, "blocks.0.project")


def custom() -> Network:
    return Network(Custom(), (torch.randn(4, 16),), {}, "shared")


NETWORKS: dict[str, Callable[[], Network]] = {
    "normal": normal,
    "convolutions": convolutions,
    "attention": attention,
    "custom": custom,
}


@dataclass
class Told:
    """What a run left: weights and states as numbers, and its events as (step, name, data)."""

    state: list[Any]
    events: list[tuple[int, str, dict[str, Any]]]
    rows: Any

    def of(self, name: str) -> list[dict[str, Any]]:
        return [data for _, event, data in self.events if event == name]


def train(
    make: Callable[[], Network],
    folder: Path | None,
    *,
    steps: int = 8,
    seed: int = 0,
    dtype: torch.dtype | None = torch.float16,
    before: Callable[[int, Network], None] = lambda step, network: None,
    spoil: Callable[[int, torch.Tensor], torch.Tensor] = lambda step, loss: loss,
    **options: Any,
) -> Told:
    """Trains the network under autocast, with a scaler where the dtype is float16. folder None: not watched."""
    torch.manual_seed(seed)
    network = make()
    network.model.train()
    optimizer = torch.optim.AdamW(network.model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, enabled=dtype is torch.float16)
    run = ammeter.watch(network.model, optimizer, scaler, dir=folder, **options) if folder else ammeter.Run()
    try:
        for step in range(steps):
            before(step, network)
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
                loss = spoil(step, network.loss())
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer)
            scaler.update()
    finally:
        run.close()
    state = [tensor.tolist() for tensor in network.model.state_dict().values()]
    state += [torch.get_rng_state().tolist(), *(parameter.grad.tolist() for parameter in network.model.parameters())]  # type: ignore[union-attr]
    if folder is None:
        return Told(state, [], None)
    rows, frames = stream(run.id, folder)
    emitted = [(frame.step, frame.name, frame.data) for frame in frames if type(frame).__name__ == "Event"]
    assert [] == [event for event in emitted if event[1] == "probe.failed"]
    return Told(state, emitted, rows)
