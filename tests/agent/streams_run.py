"""Broken runs as a whole: what they save, where they stand still, how their gradients jump."""

from __future__ import annotations

from tests.agent.streams import SECOND, Stream, broken, warm


@broken
def checkpoint_exposed() -> Stream:
    stream = warm(30)
    contents = {"weights": {"float32": 1280}, "optimizer": True, "scaler": True, "whole": True}
    return stream.event(
        "checkpoint.saved", path="out/run.pt", contents=contents, missing=[], mode="0666", exposed=["read", "replace"]
    ).good(65536)


@broken
def checkpoint_incomplete() -> Stream:
    stream = warm(30)
    contents = {"weights": {"float16": 1280}, "optimizer": False, "scaler": False, "whole": True}
    missing = ["float32 weights", "optimizer", "scaler"]
    for _ in range(4):
        stream.event("checkpoint.saved", path="out/run.pt", contents=contents, missing=missing, mode="0600", exposed=[])
        for _ in range(10):
            stream.good(65536)
    return stream


@broken
def run_stalled() -> Stream:
    stream = warm()
    stream.now += 2 * 3600 * SECOND
    return stream.bye("exception", "KeyboardInterrupt")


@broken
def gradient_spike() -> Stream:
    stream = warm(70)
    for _ in range(12):
        stream.good(65536, norm=80 + 20 * float(stream.dice.random()), clip_max=1.0)
    return stream


@broken
def resume_mismatch() -> Stream:
    stream = Stream().autocast().good(4096)
    stream.event("weights.census", parameters={"float32": 99}, state={})
    contents = {"weights": {"float32": 99}, "optimizer": True, "whole": True}
    stream.event("checkpoint.restored", path="out/run.pt", contents=contents).event("scaler.restored", scale=4096.0)
    stream.event("weights.census", parameters={"float32": 99}, state={"float32": 198})
    for _ in range(30):
        stream.good(4096)
    return stream
