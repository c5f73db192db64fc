"""A stream as a training process would write it, made up frame by frame for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ammeter.wire.columns import ABSENT
from ammeter.wire.frames import STATS, Bye, Event, Frame, Hello, Schema, Steps, Tensor

TENSORS = (
    Tensor("embed.weight", (128, 8), "float32"),
    Tensor("blocks.0.fc.weight", (32, 8), "float32"),
    Tensor("blocks.0.fc.bias", (32,), "float32"),
    Tensor("blocks.1.fc.weight", (32, 8), "float32"),
    Tensor("blocks.1.fc.bias", (32,), "float32"),
    Tensor("head.weight", (128, 8), "float32"),
)
SECOND = 10**9
SEED = 20


class Stream:
    """A stream under construction: one step after the other, events where they happen."""

    def __init__(self, tensors: Sequence[Tensor] = TENSORS, world_size: int = 1) -> None:
        self.schema = Schema(stats=tuple(STATS), tensors=tuple(tensors))
        self.frames: list[Frame] = [
            Hello("run", "stream", self.schema, host="node7", pid=4711, world_size=world_size, started=SECOND)
        ]
        self.now = SECOND
        self.next_step = 0
        self.dice = np.random.default_rng(SEED)

    def event(self, name: str, **data: Any) -> Stream:
        """Something that happens in the step that closed last."""
        self.frames.append(Event(name, max(0, self.next_step - 1), self.now, data))
        return self

    def autocast(self, dtype: str = "float16", grad: bool = True) -> Stream:
        return self.event("autocast.entered", device="cpu", dtype=dtype, grad=grad)

    def step(self, seconds: float = 0.1, stats: dict[str, Sequence[float]] | None = None, **scalars: float) -> Stream:
        """A step: scalars by column, stats by name with one number per tensor; the others are not measured."""
        values = np.full(self.schema.width, ABSENT, np.float32)
        for name, value in scalars.items():
            values[self.schema.scalars.index(name)] = value
        for name, numbers in (stats or {}).items():
            values[self.schema.span(name)] = numbers
        self.now += int(seconds * SECOND)
        self.frames.append(Steps(self.next_step, self.now, values.tobytes()))
        self.next_step += 1
        return self

    def good(self, scale: float | None = None, norm: float = 1.0, **more: Any) -> Stream:
        """An applied step with finite loss and gradients; its absmax is a tenth of the norm where `full` asks."""
        stats = {"grad.norm": [norm / 2.45] * len(self.schema.tensors), **more.pop("stats", {})}
        scalars: dict[str, float] = {"loss": 2.0, "applied": 1, "skipped": 0, "grad_norm": norm}
        if scale is not None:
            scalars |= {"scale": scale, "found_inf": 0}
        if more.pop("full", False):
            scalars |= {"grad_absmax": norm / 10, "grad_nonfinite": 0}
            stats = {**self.readings(), **stats}
        return self.step(stats=stats, **(scalars | more))

    def readings(self, zeros: float = 0.05, subnormals: float = 0.0, grid: float = 1.0) -> dict[str, list[float]]:
        """Stats of a full reading with these shares of every tensor."""
        numel = [tensor.numel for tensor in self.schema.tensors]
        return {
            "grad.zeros": [round(zeros * elements) for elements in numel],
            "grad.subnormals": [round(subnormals * elements) for elements in numel],
            "grad.fp16_grid": [grid] * len(numel),
            "grad.absmax": [0.1] * len(numel),
        }

    def bad(self, scale: float | None = None, last: int = 0, first: int = 0, **more: Any) -> Stream:
        """A step whose tensors first..last are NaN, Inf with inf=True; the scaler, where there is one, skips it."""
        inf = more.pop("inf", False)
        count = len(self.schema.tensors)
        broken = [first <= at <= last for at in range(count)]
        numel = [tensor.numel for tensor in self.schema.tensors]
        stats: dict[str, Sequence[float]] = {
            "grad.norm": [np.inf if inf and hit else np.nan if hit else 0.4 for hit in broken],
            "grad.nans": [
                float(0 if inf else elements if hit else ABSENT) for elements, hit in zip(numel, broken, strict=True)
            ],
            "grad.infs": [float(inf if hit else ABSENT) for hit in broken],
        }
        skips = scale is not None
        scalars: dict[str, float] = {"loss": 2.0, "applied": not skips, "skipped": skips}
        scalars |= {"grad_norm": np.inf if inf else np.nan, "grad_nonfinite": sum(broken)}
        if scale is not None:
            scalars |= {"scale": scale, "found_inf": 1}
        self.step(stats=stats, **(scalars | more))
        if skips:
            self.event("step.skipped", scale=scale, consecutive=1)
            self.event("scaler.backoff", **{"from": scale, "to": scale and scale / 2})
        tensors = [
            {"tensor": tensor.name, "nans": 0 if inf else tensor.numel, "infs": int(inf)}
            for tensor, hit in zip(self.schema.tensors, broken, strict=True)
            if hit
        ]
        data = {"tensors": tensors, "count": len(tensors), "last": tensors[-1]["tensor"], "scaled": skips}
        return self.event("gradient.nonfinite", **data, finite_after=count - 1 - last, finite=count - len(tensors))

    def bye(self, reason: str = "closed", message: str = "") -> Stream:
        self.frames.append(Bye(reason, self.next_step - 1, self.now, message))  # type: ignore[arg-type]
        return self


def warm(steps: int = 40, scale: float | None = 65536.0) -> Stream:
    """A run in float16 that has come this far without a skip."""
    stream = Stream().autocast("float16" if scale else "bfloat16")
    if scale:
        stream.event("scaler.seen", enabled=True, device="cpu", scale=scale)
    for step in range(steps):
        stream.good(scale, norm=1 + 0.3 * float(stream.dice.random()), full=step % 7 == 0)
    return stream


def mistaken(event: str, **data: Any) -> Stream:
    """A run that continues after a reported mistake in the order of calls."""
    stream = warm(10).event(f"usage.{event}", caller="loop/train.py:120", optimizer="SGD", **data)
    for _ in range(30):
        stream.good(65536)
    return stream
