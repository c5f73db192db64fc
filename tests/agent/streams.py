"""Streams of healthy and broken runs, by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ammeter.wire.columns import ABSENT
from tests.agent.stream_builder import Stream, mistaken, warm

HEALTHY: dict[str, Callable[[], Stream]] = {}
BROKEN: dict[str, Callable[[], Stream]] = {}
"""Name of a verdict -> a stream that it must name, alone or with what came of it."""


def healthy(make: Callable[[], Stream]) -> Callable[[], Stream]:
    HEALTHY[make.__name__.replace("_", " ")] = make
    return make


def broken(make: Callable[[], Stream]) -> Callable[[], Stream]:
    BROKEN[make.__name__.replace("_", "-")] = make
    return make


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
