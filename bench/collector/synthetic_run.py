"""Synthetic streams: eight ranks with 1,200 columns and 2,000 steps that resemble a GPT in float16.

Norms and ratios vary in all bits of a float32; counts are whole numbers; absolute maxima of float16 gradients lie on
its grid; columns that a healthy run leaves at zero are zero. Every column is measured at every step, so the number of
values is the same for all servers.
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
BLOCK_SHAPES = {
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
LOGGED_SCALARS = ("lr", "perplexity", "accuracy", "entropy")
"""Values that such programs pass to run.log."""

FULL_SCHEMA = Schema(
    (*SCALARS, *LOGGED_SCALARS),
    tuple(STATS),
    (
        Tensor("embed.weight", (50304, WIDTH), "float32"),
        *(
            Tensor(f"blocks.{layer}.{name}", shape, "float32")
            for layer in range(LAYERS)
            for name, shape in BLOCK_SHAPES.items()
        ),
    ),
)
"""1,200 columns."""

SCALAR_SCHEMA = Schema((*SCALARS, *LOGGED_SCALARS))

STEP_NS = 500_000_000
"""Duration of a step."""

LOSS_SCALE = 65536.0


@dataclass(frozen=True)
class Rank:
    """One rank's stream. begin: the end of its first step, in ns since the epoch."""

    run: str
    rank: int
    steps: int
    begin: int
    schema: Schema = FULL_SCHEMA
    ranks: int = 8
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)

    @cached_property
    def view(self) -> View:
        """All rows."""
        steps = np.arange(self.steps, dtype=np.int64)
        jitter = np.random.default_rng(self.rank).integers(0, 2_000_000, self.steps)
        return View(self.schema, steps, self.begin + steps * STEP_NS + jitter, _values(self))

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
        """Batches of `rows` steps, as the shipper sends them: the first also has the hello and two events."""
        first: list[frames.Item] = [
            self.hello,
            Event("scaler.seen", 0, self.begin, {"enabled": True, "device": "cuda", "scale": LOSS_SCALE}),
            Event("autocast.entered", 0, self.begin, {"device": "cuda", "dtype": "float16", "grad": True}),
        ]
        for begin in range(0, self.steps, rows):
            yield Batch(items=[*first, columns.pack(self.view.rows(begin, min(begin + rows, self.steps)))])
            first = []

    def bye(self) -> Batch:
        return Batch(items=[Bye("closed", self.steps - 1, int(self.view.times[-1]))], alive=False)


def new_run(ranks: int, steps: int, begin: int, schema: Schema = FULL_SCHEMA) -> list[Rank]:
    """The ranks of a new run with a random id."""
    run = str(uuid.uuid4())
    return [Rank(run, rank, steps, begin, schema, ranks) for rank in range(ranks)]


def _values(rank: Rank) -> Floats:
    rng = np.random.default_rng(1000 + rank.rank)
    scalars = _scalars(rank, rng)
    values = np.empty((rank.schema.width, rank.steps), np.float32)
    for place, name in enumerate(rank.schema.scalars):
        values[place] = scalars[name]
    sizes = np.array([tensor.numel for tensor in rank.schema.tensors], np.float64)[:, None]
    for stat in rank.schema.stats:
        values[rank.schema.span(stat)] = _stat(stat, sizes, scalars["grad_norm"], rng)
    return values


def _scalars(rank: Rank, rng: np.random.Generator) -> dict[str, Floats]:
    """A curve for each scalar: a falling loss, a varying norm, a constant loss scale."""
    step = np.arange(rank.steps)

    def noisy(level: float, share: float) -> Floats:
        return (level * np.exp(share * rng.standard_normal(rank.steps))).astype(np.float32)

    loss = (8.4 * np.exp(-step / 400) + 2.4 + 0.05 * rng.standard_normal(rank.steps)).astype(np.float32)
    known = {
        "scale": np.full(rank.steps, LOSS_SCALE),
        "growth_tracker": step % 2000,
        "applied": np.ones(rank.steps),
        "loss": loss,
        "val_loss": loss + 0.1,
        "samples": np.full(rank.steps, 32.0),
        "grad_norm": noisy(1.3, 0.2),
        "grad_absmax": _on_grid(noisy(0.02, 0.3)),
        "clip_max": np.full(rank.steps, 10.0),
        "micro_batches": np.ones(rank.steps),
        "step_seconds": noisy(STEP_NS / 1e9, 0.02),
        "overhead_seconds": noisy(0.002, 0.2),
        "tokens": np.full(rank.steps, 32768.0),
        "calls_followed": np.ones(rank.steps),
        "norms_every": np.ones(rank.steps),
        "full_every": np.ones(rank.steps),
        "host_rss_bytes": 4096.0 * np.round(noisy(1_000_000, 0.001)),
        "device_allocated_bytes": np.full(rank.steps, 21.5e9),
        "device_reserved_bytes": np.full(rank.steps, 24e9),
        "lost_updates": noisy(0.01, 0.1),
        "update_ratio": noisy(1e-3, 0.1),
        "grad_agreement": 0.1 * rng.standard_normal(rank.steps),
        "low_precision_share": np.full(rank.steps, 0.97),
        "cast_bytes": np.full(rank.steps, 3.1e9),
        "lr": 3e-4 * np.minimum(1.0, (1 + step) / 200),
        "perplexity": np.exp(loss),
        "accuracy": 0.4 - 0.03 * loss,
        "entropy": 0.9 * loss,
    }
    return {name: np.asarray(known.get(name, np.zeros(rank.steps)), np.float32) for name in (*SCALARS, *LOGGED_SCALARS)}


def _stat(stat: str, sizes: Doubles, norm: Floats, rng: np.random.Generator) -> Doubles:
    """One statistic of all tensors, shape [tensors, steps]."""
    shape = (len(sizes), len(norm))
    noise = rng.standard_normal(shape)
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
    return np.zeros(shape)  # counts of elements that are not finite


def _on_grid(numbers: npt.NDArray[np.floating[Any]]) -> Doubles:
    """Rounds to the 11 significant bits of a float16."""
    exponent = np.floor(np.log2(np.maximum(numbers, math.ldexp(1.0, -24))))
    unit = np.exp2(exponent - 10)
    rounded: Doubles = np.round(numbers / unit) * unit
    return rounded
