"""Broken runs as a whole: what they save, where they stand still, how their gradients jump."""

from __future__ import annotations

from tests.agent.stream_builder import SECOND, Stream, warm
from tests.agent.streams import broken, healthy


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


@broken
def sign_flip() -> Stream:
    stream = warm(4)
    for step in range(90):
        turned = step >= 45
        cosine = (-0.7 if turned else 0.2) + 0.2 * float(stream.dice.random())
        stream.good(65536, loss=2.0, grad_agreement=cosine, stats={"grad.agreement": [cosine, 0.1, 0.1, 0.1, 0.1, 0.1]})
    return stream


@broken
def stagnation() -> Stream:
    stream = Stream()
    for step in range(240):
        ratio = {"update_ratio": 2e-8} if step % 20 == 19 else {}
        stream.good(loss=4.85 + 0.02 * float(stream.dice.random()), **ratio)
    return stream


@broken
def checkpoint_stale() -> Stream:
    stream = warm(10)
    contents = {"weights": {"float32": 1280}, "optimizer": True, "scaler": True, "whole": True}
    stream.event("checkpoint.saved", path="out/run.pt", seconds=4.0, contents=contents, missing=[], exposed=[])
    for _ in range(30):
        stream.good(65536, seconds=600.0)
    return stream


@healthy
def batches_of_all_the_data_that_bounce_for_a_while() -> Stream:
    """At the edge of what the learning rate bears; then the run finds a flatter place and learns on."""
    stream = Stream()
    for step in range(200):
        bounces = 100 <= step < 125
        stream.good(loss=2.0 - step / 200 + 0.2 * bounces, grad_agreement=-0.9 if bounces else 0.95)
    return stream.bye()


@healthy
def gradients_of_tiny_batches_that_agree_on_nothing() -> Stream:
    stream = Stream()
    for _ in range(400):
        stream.good(grad_agreement=float(stream.dice.normal(0, 0.3)))
    return stream.bye()


@healthy
def a_loss_at_its_floor_whose_weights_still_move() -> Stream:
    stream = Stream()
    for step in range(400):
        stream.good(loss=0.69 + 0.05 * float(stream.dice.random()), update_ratio=5e-5, seconds=0.1 + step % 2)
    return stream.bye()


@healthy
def a_resumed_run_at_the_end_of_its_schedule() -> Stream:
    stream = Stream()
    stream.event("weights.census", parameters={"float32": 99}, state={"float32": 198})
    for _ in range(400):
        stream.good(loss=1.3 + 0.02 * float(stream.dice.random()), update_ratio=1e-9)
    return stream.bye()


@healthy
def a_learning_rate_that_has_ended() -> Stream:
    stream = Stream()
    for step in range(600):
        stream.good(loss=1.3 + 3 / (1 + step / 10), update_ratio=max(0.0, 1e-3 * (1 - step / 200)))
    return stream.bye()
