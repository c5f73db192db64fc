"""Streams as a training process would write them, healthy and broken, made up frame by frame for tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import ABSENT, Tick, View, view
from ammeter.wire.frames import STATS, Bye, Event, Frame, Hello, Lost, Schema, Steps, Tensor

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


def views(frames: Iterable[Frame], cuts: Iterable[int] = (), schema: Schema | None = None) -> list[View]:
    """The frames as views, cut before the frames with these indices and wherever the schema changes."""
    wanted, found = set(cuts), []
    rows: list[Steps] = []
    others: list[tuple[int, Hello | Event | Lost | Bye]] = []
    schema = schema or Schema()
    for index, frame in enumerate(frames):
        changes = isinstance(frame, Hello) and frame.schema != schema
        if (index in wanted or changes) and (rows or others):
            found.append(view(schema, rows, others))
            rows, others = [], []
        if isinstance(frame, Hello):
            schema = frame.schema
        if isinstance(frame, Steps):
            rows.append(frame)
        else:
            others.append((len(rows), frame))
    return [*found, view(schema, rows, others)]


@cache
def whole(make: Callable[[], Stream]) -> tuple[View, ...]:
    """The views of a stream without cuts, made once; a verdict changes no view."""
    return tuple(views(make().frames))


def judged(
    stream: Stream, cuts: Iterable[int] = (), tick: Tick | None = None
) -> tuple[dict[str, bytes], dict[str, Finding]]:
    """What all verdicts come to over a stream: their last states and their last findings by id."""
    states: dict[str, bytes] = {}
    findings: dict[str, Finding] = {}
    ticks = [view(stream.schema, (), tick=tick)] if tick else []
    for entry in (*views(stream.frames, cuts), *ticks):
        answer = verdicts.judge(states, entry)
        assert {} == answer.faults
        states = answer.states
        findings |= {finding.verdict: finding for finding in answer.findings}
    return states, findings


def findings(stream: Stream, tick: Tick | None = None) -> dict[str, Finding]:
    return judged(stream, tick=tick)[1]


HEALTHY: dict[str, Callable[[], Stream]] = {}
BROKEN: dict[str, Callable[[], Stream]] = {}
"""Name of a verdict -> a stream that it must name, alone or with what came of it."""


def healthy(make: Callable[[], Stream]) -> Callable[[], Stream]:
    HEALTHY[make.__name__.replace("_", " ")] = make
    return make


def broken(make: Callable[[], Stream]) -> Callable[[], Stream]:
    BROKEN[make.__name__.replace("_", "-")] = make
    return make


def warm(steps: int = 40, scale: float | None = 65536.0) -> Stream:
    """A run in float16 that has come this far without a skip."""
    stream = Stream().autocast("float16" if scale else "bfloat16")
    if scale:
        stream.event("scaler.seen", enabled=True, device="cpu", scale=scale)
    for step in range(steps):
        stream.good(scale, norm=1 + 0.3 * float(stream.dice.random()), full=step % 7 == 0)
    return stream


@healthy
def a_fresh_scaler_that_calibrates_over_six_skips() -> Stream:
    stream = Stream().autocast()
    for halvings in range(6):
        stream.bad(65536 / 2**halvings, last=5, inf=True)
    for step in range(300):
        stream.good(1024, norm=20, full=step % 9 == 0)
    return stream.bye()


@healthy
def a_first_scale_of_2_to_the_24_that_comes_down() -> Stream:
    stream = Stream().autocast()
    for halvings in range(14):
        stream.bad(2.0 ** (24 - halvings), last=5 - halvings % 3, inf=True)
    for step in range(100):
        stream.good(1024, full=step % 9 == 0)
    return stream.bye()


@healthy
def growth_and_one_backoff_every_2000_steps() -> Stream:
    stream = Stream().autocast()
    for step in range(6100):
        if step and step % 2001 == 0:
            stream.bad(32768, last=int(stream.dice.integers(0, 6)), inf=True)
        else:
            stream.good(16384, norm=15 * float(stream.dice.lognormal(0, 0.4)), full=step % 31 == 0)
    return stream.bye()


@healthy
def a_growth_that_holds_a_while_before_it_overflows() -> Stream:
    stream = warm(200, scale=16384.0)
    for step in range(300):
        stream.good(32768, norm=10, full=step % 31 == 0)
    stream.bad(32768, last=3, inf=True).bad(16384, last=1, inf=True)
    for step in range(200):
        stream.good(8192, norm=10, full=step % 31 == 0)
    return stream.bye()


@healthy
def noisy_norms_of_tiny_batches() -> Stream:
    stream = Stream().autocast()
    for step in range(800):
        stream.good(65536, norm=float(stream.dice.lognormal(-2, 1.5)), full=step % 13 == 0)
    return stream.bye()


@healthy
def embeddings_and_dead_units_with_mostly_zero_gradients() -> Stream:
    stream = Stream().autocast()
    for _ in range(60):
        stats = stream.readings(zeros=0.97, subnormals=0.001)
        stream.good(65536, full=True, stats=stats)
    return stream.bye()


@healthy
def a_frozen_tensor_without_any_gradient_and_one_that_is_zero() -> Stream:
    stream = Stream().autocast()
    for _ in range(60):
        stats: dict[str, list[float]] = {name: list(column) for name, column in stream.readings().items()}
        for column in stats.values():
            column[0] = float(ABSENT)
        stats["grad.zeros"][2], stats["grad.fp16_grid"][2], stats["grad.absmax"][2] = 32, float(ABSENT), 0
        stream.good(65536, full=True, stats=stats)
    return stream.bye()


@healthy
def bfloat16_without_a_scaler() -> Stream:
    return warm(300, scale=None).bye()


@healthy
def float32_without_autocast() -> Stream:
    stream = Stream()
    for step in range(300):
        stream.good(full=step % 9 == 0, stats=stream.readings(subnormals=0.8, grid=0.0))
    return stream.bye()


@healthy
def a_float16_teacher_whose_student_trains_in_float32() -> Stream:
    stream = Stream().autocast(grad=True).autocast(grad=False)
    for step in range(300):
        stream.good(full=step % 9 == 0, stats=stream.readings(grid=0.1))
    return stream.bye()


@healthy
def float16_for_inference_only() -> Stream:
    stream = Stream().autocast(grad=False)
    for step in range(300):
        stream.good(full=step % 9 == 0)
    return stream.bye()


@healthy
def nothing_measured_but_the_step() -> Stream:
    stream = Stream()
    for _ in range(300):
        stream.step()
    return stream.bye()


@healthy
def evaluation_pauses_of_ten_minutes() -> Stream:
    stream = warm(50)
    for _ in range(3):
        stream.good(65536, seconds=600.0)
        stream.step(val_loss=2.5, seconds=600.0)
        for _ in range(50):
            stream.good(65536)
    return stream.bye()


@healthy
def a_clip_whose_limit_is_multiplied_by_the_scale() -> Stream:
    return warm(20).event("usage.clip_before_unscale", caller="own.py:9", max_norm=65536.0, scale=65536.0).bye()


@healthy
def one_skipped_batch_at_a_scale_that_worked_with_little_room() -> Stream:
    stream = Stream().autocast()
    for step in range(100):
        stream.good(65536, norm=4.0, full=step % 9 == 0)
    stream.bad(65536, last=2, inf=True)
    for step in range(100):
        stream.good(32768, norm=4.0, full=step % 9 == 0)
    return stream.bye()


@broken
def agent_blind() -> Stream:
    stream = warm(30).event("probe.failed", probe="user", error="RuntimeError: the storage was released")
    for _ in range(20):
        stream.good(65536)
    return stream.bye()


@broken
def overflow_storm() -> Stream:
    stream = warm(20, scale=8192.0)
    for _ in range(30):
        stream.bad(32768, last=3, inf=True).bad(16384, last=1, inf=True)
        stream.good(8192, norm=5, growth_tracker=0, full=True)
    return stream


@broken
def scale_collapse() -> Stream:
    stream = warm()
    for halvings in range(30):
        stream.bad(2.0 ** (16 - halvings), first=3, last=3, inf=True)
    return stream


@broken
def nonfinite_loss() -> Stream:
    stream = warm()
    for halvings in range(12):
        stream.bad(2.0 ** (16 - halvings), last=5, loss=np.nan)
    return stream


@broken
def nonfinite_gradient() -> Stream:
    stream = warm()
    for halvings in range(30):
        stream.bad(2.0 ** (16 - halvings), last=3)
    return stream


@broken
def gradient_underflow() -> Stream:
    stream = Stream().autocast()
    for step in range(60):
        lost = stream.readings(zeros=0.6, subnormals=0.35)
        stream.good(1.0, norm=1e-3, full=step % 5 == 0, stats=lost if step % 5 == 0 else {})
    return stream


@broken
def no_loss_scaling() -> Stream:
    stream = Stream().autocast()
    for step in range(60):
        lost = stream.readings(zeros=0.6, subnormals=0.35)
        stream.good(norm=1e-3, full=step % 5 == 0, stats=lost if step % 5 == 0 else {})
    return stream


@broken
def clip_before_unscale() -> Stream:
    stream = warm(3)
    stream.event("usage.clip_before_unscale", caller="train.py:120", max_norm=1.0, scale=65536.0)
    for _ in range(30):
        stream.good(65536)
    return stream


def clip_by_hand() -> Stream:
    """Gradients whose scaled norm is always 1 while the share of each tensor changes."""
    stream = warm(30)
    for _ in range(50):
        shares = 1 + stream.dice.random(6)
        norms = shares / float((shares**2).sum()) ** 0.5 / 65536
        stream.good(65536, norm=1 / 65536, stats={"grad.norm": list(norms)})
    return stream


def mistaken(event: str, **data: Any) -> Stream:
    """A run that goes on after a mistake in the order of calls was told."""
    stream = warm(10).event(f"usage.{event}", caller="loop/train.py:120", optimizer="SGD", **data)
    for _ in range(30):
        stream.good(65536)
    return stream


@broken
def loss_not_scaled() -> Stream:
    return mistaken("loss_not_scaled", scale=65536.0, scaled_too=False)


@broken
def gradients_not_unscaled() -> Stream:
    stream = warm(10).event("usage.gradients_not_unscaled", caller="loop/train.py:120", optimizer="SGD", scale=65536.0)
    for _ in range(5):
        stream.bad(last=5, loss=np.nan)
    return stream


@broken
def mixed_scale_gradients() -> Stream:
    return mistaken("mixed_scale", after="unscale_", scale=65536.0, first_step=9)


@broken
def update_between_optimizers() -> Stream:
    return mistaken("update_between_optimizers", scale=65536.0, scale_before=32768.0, first_step=8)


@broken
def gradients_not_reset() -> Stream:
    stream = warm()
    for halvings in range(30):
        stream.bad(2.0 ** (17 - halvings), last=3, inf=halvings == 0)
        if halvings == 1:
            left = {"after": "skipped", "left": np.inf, "scale": 65536.0}
            stream.event("usage.gradients_not_reset", caller="loop/train.py:120", optimizer="SGD", **left)
    return stream


@broken
def lopsided_step() -> Stream:
    stream = warm()
    for times in range(1, 9):
        stream.bad(65536, last=1, inf=True, applied=1)
        if times & (times - 1) == 0:
            names = {"skipped": ["AdamW of head.weight"], "applied": ["AdamW of embed.weight"]}
            stream.event("usage.lopsided_step", **names, scale=65536.0, times=times)
        for _ in range(60):
            stream.good(32768, norm=10)
    return stream


@broken
def run_lost() -> Stream:
    return warm().bye("lost")
