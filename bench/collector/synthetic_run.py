"""What the ranks of a training say: eight of them, 1,200 columns, 2,000 steps, made up to look like a GPT in float16.

Norms and ratios waver in all bits of a float32; counts are whole numbers; what float16 gradients made lies on its grid;
what a healthy run never has is zero. Every column is measured in every step, so values are counted alike for all.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ammeter.wire import columns, frames
from ammeter.wire.columns import Floats, View
from ammeter.wire.frames import SCALARS, STATS, Batch, Bye, Event, Hello, Schema, Tensor

Doubles = npt.NDArray[np.float64]

LAYERS, WIDTH = 8, 512
PARTS = {
    "ln_1.weight": (WIDTH,),
    "ln_1.bias": (WIDTH,),
    "attn.qkv.weight": (3 * WIDTH, WIDTH),
    "attn.qkv.bias": (3 * WIDTH,),
    "attn.proj.weight": (WIDTH, WIDTH),
    "attn.proj.bias": (WIDTH,),
    "ln_2.weight": (WIDTH,),
    "ln_2.bias": (WIDTH,),
    "mlp.fc.weight": (4 * WIDTH, WIDTH),
    "mlp.fc.bias": (4 * WIDTH,),
    "mlp.proj.weight": (WIDTH, 4 * WIDTH),
    "mlp.proj.bias": (WIDTH,),
}
LOGGED = ("lr", "perplexity", "accuracy", "entropy", "z_loss", "tokens_per_second")
"""What such programs say with run.log."""

WHOLE = Schema(
    (*SCALARS, *LOGGED),
    tuple(STATS),
    (
        Tensor("embed.weight", (50304, WIDTH), "float32"),
        *(
            Tensor(f"blocks.{layer}.{name}", shape, "float32")
            for layer in range(LAYERS)
            for name, shape in PARTS.items()
        ),
    ),
)
"""1,200 columns."""

SCALARS_ONLY = Schema((*SCALARS, *LOGGED))

NANOSECONDS = 500_000_000
"""From one step to the next."""

SCALE = 65536.0


@dataclass(frozen=True)
class Rank:
    """One rank's stream. begin: when its first step closed, in ns."""

    run: str
    rank: int
    steps: int
    begin: int
    schema: Schema = WHOLE
    ranks: int = 8
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def view(self) -> View:
        """All of its rows."""
        steps = np.arange(self.steps, dtype=np.int64)
        jitter = np.random.default_rng(self.rank).integers(0, 2_000_000, self.steps)
        return View(self.schema, steps, self.begin + steps * NANOSECONDS + jitter, _values(self))

    @property
    def hello(self) -> Hello:
        return Hello(
            run=self.run,
            stream=self.stream,
            schema=self.schema,
            rank=self.rank,
            world_size=self.ranks,
            host=f"node-{self.rank // 8}",
            pid=1000 + self.rank,
            started=self.begin,
            name="gpt",
            config={"lr": 3e-4, "precision": "fp16"},
            environment={"torch": "2.13.0"},
        )

    def batches(self, rows: int) -> Iterator[Batch]:
        """As the shipper sends them, so many steps each: the hello and what a program says once, then rows."""
        first: list[frames.Item] = [
            self.hello,
            Event("scaler.seen", 0, self.begin, {"enabled": True, "device": "cuda", "scale": SCALE}),
            Event("autocast.entered", 0, self.begin, {"device": "cuda", "dtype": "float16", "grad": True}),
        ]
        for begin in range(0, self.steps, rows):
            yield Batch(items=[*first, columns.pack(self.view.rows(begin, min(begin + rows, self.steps)))])
            first = []

    def bye(self) -> Batch:
        return Batch(items=[Bye("closed", self.steps - 1, int(self.view.times[-1]))], alive=False)


def run_of(ranks: int, steps: int, begin: int, schema: Schema = WHOLE) -> list[Rank]:
    """The ranks of a new run."""
    run = str(uuid.uuid4())
    return [Rank(run, rank, steps, begin, schema, ranks) for rank in range(ranks)]


def _values(of: Rank) -> Floats:
    chance = np.random.default_rng(1000 + of.rank)
    scalars = _scalars(of, chance)
    values = np.empty((of.schema.width, of.steps), np.float32)
    for place, name in enumerate(of.schema.scalars):
        values[place] = scalars[name]
    sizes = np.array([tensor.numel for tensor in of.schema.tensors], np.float64)[:, None]
    for stat in of.schema.stats:
        values[of.schema.span(stat)] = _stat(stat, sizes, scalars["grad_norm"], chance)
    return values


def _scalars(of: Rank, chance: np.random.Generator) -> dict[str, Floats]:
    """Name -> its curve: a loss that falls, a norm that wavers, a scale that nobody had to change."""
    at = np.arange(of.steps)

    def noisy(level: float, share: float) -> Floats:
        return (level * np.exp(share * chance.standard_normal(of.steps))).astype(np.float32)

    loss = (8.4 * np.exp(-at / 400) + 2.4 + 0.05 * chance.standard_normal(of.steps)).astype(np.float32)
    known = {
        "scale": np.full(of.steps, SCALE),
        "growth_tracker": at % 2000,
        "applied": np.ones(of.steps),
        "loss": loss,
        "val_loss": loss + 0.1,
        "samples": np.full(of.steps, 32.0),
        "grad_norm": noisy(1.3, 0.2),
        "grad_absmax": _on_grid(noisy(0.02, 0.3)),
        "clip_max": np.full(of.steps, 10.0),
        "micro_batches": np.ones(of.steps),
        "step_seconds": noisy(NANOSECONDS / 1e9, 0.02),
        "overhead_seconds": noisy(0.002, 0.2),
        "tokens": np.full(of.steps, 32768.0),
        "calls_followed": np.ones(of.steps),
        "norms_every": np.ones(of.steps),
        "full_every": np.ones(of.steps),
        "host_rss_bytes": 4096.0 * np.round(noisy(1_000_000, 0.001)),
        "device_allocated_bytes": np.full(of.steps, 21.5e9),
        "device_reserved_bytes": np.full(of.steps, 24e9),
        "lost_updates": noisy(0.01, 0.1),
        "update_ratio": noisy(1e-3, 0.1),
        "grad_agreement": 0.1 * chance.standard_normal(of.steps),
        "low_precision_share": np.full(of.steps, 0.97),
        "cast_bytes": np.full(of.steps, 3.1e9),
        "lr": 3e-4 * np.minimum(1.0, (1 + at) / 200),
        "perplexity": np.exp(loss),
        "accuracy": 0.4 - 0.03 * loss,
        "entropy": 0.9 * loss,
        "z_loss": 1e-4 * loss**2,
        "tokens_per_second": 32768.0 / noisy(NANOSECONDS / 1e9, 0.02),
    }
    return {name: np.asarray(known.get(name, np.zeros(of.steps)), np.float32) for name in (*SCALARS, *LOGGED)}


def _stat(stat: str, sizes: Doubles, norm: Floats, chance: np.random.Generator) -> Doubles:
    """[tensors, steps] of one statistic."""
    shape = (len(sizes), len(norm))
    noise = chance.standard_normal(shape)
    own: Doubles = norm * np.sqrt(sizes / sizes.sum()) * np.exp(0.3 * noise)
    match stat:
        case "grad.norm":
            return own
        case "grad.absmax":
            return _on_grid(own / np.sqrt(sizes) * 5)
        case "grad.zeros":
            return np.round(sizes * 0.001 * np.exp(0.2 * noise))
        case "grad.subnormals":
            return np.round(sizes * 0.01 * np.exp(0.2 * noise))
        case "grad.fp16_grid":
            return np.ones(shape)
        case "weight.norm":
            drift = np.cumsum(1e-4 * np.abs(noise), axis=1)
            return np.sqrt(np.minimum(sizes, 4096)) * 0.02 * (1 + drift)
        case "update.ratio":
            return 1e-3 * np.exp(0.2 * noise)
        case "update.lost":
            return np.round(40 * np.exp(0.2 * noise)) / 4096
        case "grad.agreement":
            return 0.1 * noise
    return np.zeros(shape)  # elements that are not finite


def _on_grid(numbers: npt.NDArray[np.floating[Any]]) -> Doubles:
    """Rounded to the 11 bits of a float16."""
    exponent = np.floor(np.log2(np.maximum(numbers, math.ldexp(1.0, -24))))
    unit = np.exp2(exponent - 10)
    rounded: Doubles = np.round(numbers / unit) * unit
    return rounded
