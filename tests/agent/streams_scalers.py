"""Streams of runs whose scaler is off, needless, forgotten or made anew, and of dtypes that do not fit."""

from __future__ import annotations

from tests.agent.stream_builder import Stream, warm
from tests.agent.streams import broken, healthy


@healthy
def a_resumed_run_whose_scaler_was_restored() -> Stream:
    stream = Stream().autocast().event("scaler.seen", enabled=True, device="cpu", scale=65536.0)
    contents = {"weights": {"float32": 9}, "optimizer": True, "scaler": True, "whole": True}
    stream.event("checkpoint.restored", path="run/last.pt", seconds=0.2, contents=contents)
    stream.event("scaler.restored", scale=1024.0)
    for step in range(100):
        stream.good(1024.0, full=step % 9 == 0)
    return stream.bye()


@healthy
def a_schedule_that_moved_on_for_a_few_calibrating_skips() -> Stream:
    stream = warm(30)
    for skip in range(1, 9):
        stream.bad(2.0 ** (24 - skip), last=5, inf=True)
        if skip & (skip - 1) == 0:
            scheduled(stream, skip, 30 + skip)
    for _ in range(100):
        stream.good(32768.0)
    return stream.bye()


@broken
def scaler_disabled() -> Stream:
    stream = Stream().autocast().event("scaler.seen", enabled=False, device="cuda", scale=65536.0)
    for step in range(60):
        lost = stream.readings(zeros=0.6, subnormals=0.35)
        stream.good(norm=1e-3, full=step % 5 == 0, stats=lost if step % 5 == 0 else {})
        if not step:
            stream.event("usage.scaler_disabled", caller="train.py:31", device="cuda", autocast=["cpu"])
    return stream


@broken
def pointless_scaler() -> Stream:
    stream = Stream().autocast("bfloat16").event("scaler.seen", enabled=True, device="cpu", scale=65536.0)
    stream.good(65536.0).event("usage.scaler_with_bf16", caller="train.py:31", scale=65536.0)
    for step in range(60):
        stream.good(65536.0, full=step % 9 == 0)
    return stream


@broken
def scaler_not_restored() -> Stream:
    stream = Stream().autocast().event("scaler.seen", enabled=True, device="cpu", scale=65536.0)
    contents = {"weights": {"float32": 9}, "optimizer": True, "scaler": False, "whole": True}
    stream.event("checkpoint.restored", path="run/last.pt", seconds=0.2, contents=contents).good(65536.0)
    data = {"caller": "train.py:12", "optimizer": "AdamW", "optimizer_steps": 400, "scale": 65536.0}
    stream.event("usage.scaler_not_restored", **data)
    for _ in range(30):
        stream.good(65536.0)
    rebuilt(stream, 65536.0)
    return stream.good(65536.0)


@broken
def scaler_rebuilt() -> Stream:
    stream = warm(40, scale=1024.0)
    for _ in range(6):
        for halvings in range(4):
            stream.bad(2.0 ** (14 - halvings), last=3, inf=True)
            if not halvings:
                rebuilt(stream, 1024.0)
        for _ in range(12):
            stream.good(1024.0)
    return stream


@broken
def scheduler_ahead() -> Stream:
    stream = warm(20)
    for skip in range(1, 20):
        stream.bad(2.0 ** (36 - skip), last=5, inf=True)
        if skip & (skip - 1) == 0:
            scheduled(stream, skip, 20 + skip)
    for _ in range(30):
        stream.good(65536.0)
    return stream


@broken
def unsupported_op() -> Stream:
    data = {"caller": "model.py:12", "op": "linear", "dtypes": ["float16", "float32"], "module": "blocks.1.fc"}
    stream = warm().event("usage.unsupported_op", **data, backward=False, message="expected the same dtype")
    return stream.bye("exception")


@broken
def half_master_weights() -> Stream:
    stream = Stream().autocast("bfloat16").good()
    data = {"caller": "train.py:40", "optimizer": "AdamW", "dtypes": ["bfloat16"], "count": 6, "of": 6}
    more = {"tensors": ["embed.weight", "blocks.0.fc.weight"], "state": ["bfloat16"], "held": 0.1, "refused": False}
    stream.event("usage.half_weights", **data, **more)
    for step in range(30):
        stream.good(full=step % 9 == 0)
    return stream


def rebuilt(stream: Stream, before: float) -> None:
    data = {"optimizer": "AdamW", "scale": 16384.0, "scale_before": before}
    stream.event("usage.scaler_rebuilt", caller="train.py:31", **data)


def scheduled(stream: Stream, skipped: int, moves: int) -> None:
    data = {"scheduler": "LambdaLR", "optimizer": "AdamW of embed.weight", "caller": "train.py:50"}
    counts = {"skipped": skipped, "scheduled": moves, "applied": moves - skipped, "last": stream.next_step - 1}
    stream.event("usage.scheduler_ahead", **data, **counts)
