"""Streams of runs whose numbers went wrong: weights, scale, optimizer state, activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from ammeter.wire.columns import ABSENT
from ammeter.wire.frames import Tensor
from tests.agent.stream_builder import TENSORS, Stream, warm
from tests.agent.streams import broken, healthy


def saved(stream: Stream, path: str, **contents: Any) -> Stream:
    """A checkpoint with everything in it."""
    found = {"weights": {"float32": 10}, "optimizer": True, "scaler": True, **contents}
    return stream.event("checkpoint.saved", path=path, seconds=0.1, bytes=100, contents=found, missing=[], exposed=[])


def poisoned(stream: Stream, *tensors: str, last_finite: int | None = 30) -> Stream:
    data = {"tensors": list(tensors), "count": len(tensors), "elements": 1}
    return stream.event("weights.nonfinite", **data, last_finite=last_finite)


@broken
def nonfinite_weights() -> Stream:
    """An element of a weight turns NaN by itself; a scaler skips every step from then on."""
    stream = saved(warm(30), "/runs/7/step30.pt")
    for _ in range(10):
        stream.good(65536)
    stream.bad(65536, last=5, loss=np.nan)
    poisoned(stream, "blocks.1.fc.weight")
    for halvings in range(1, 12):
        stream.bad(2.0 ** (16 - halvings), last=5, loss=np.nan)
    return stream


@broken
def scale_underflowed() -> Stream:
    """A scale of a collapsed run is put back: one step is applied with NaN, all later ones are skipped."""
    stream = warm()
    stream.good(2.0**-130, norm=np.nan, stats={"grad.norm": [np.nan] * 6})
    for halvings in range(12):
        stream.bad(2.0 ** -(130 + halvings), last=5, loss=np.nan)
    return stream


@broken
def eps_underflow() -> Stream:
    """Weights and state in float16, and the usual eps."""
    stream = warm(1, scale=None)
    stream.event("usage.eps_below_dtype", where="AdamW", eps=1e-8, dtype="float16", caller="loop/train.py:88")
    poisoned(stream, "embed.weight", "head.weight", last_finite=None)
    for _ in range(20):
        stream.bad(last=5, loss=np.nan)
    return stream


HALF = tuple(Tensor(tensor.name, tensor.shape, "bfloat16") for tensor in TENSORS)
AVERAGED = (*TENSORS, *(Tensor(f"ema.{tensor.name}", tensor.shape, "bfloat16") for tensor in TENSORS))


def reading(stream: Stream, share: float, copy: bool = True) -> Stream:
    """A step after which it was read which share of the updates of the copy, or of the weights, was lost."""
    of_weights, of_copy = (0.001, share) if copy else (share, float(ABSENT))
    count = len(stream.schema.tensors) // 2 if copy else len(stream.schema.tensors)
    lost = [of_weights] * count + ([of_copy] * count if copy else [])
    return stream.good(stats={"update.lost": lost})


@broken
def lost_updates() -> Stream:
    """An average of the weights, kept in bfloat16, that never moves."""
    stream = Stream(AVERAGED)
    for _ in range(8):
        reading(stream, 0.98)
        for _ in range(4):
            stream.good()
    return stream


@healthy
def an_average_in_bfloat16_that_moves() -> Stream:
    stream = Stream(AVERAGED)
    for step in range(60):
        reading(stream, 0.9 if step % 3 else 0.3)
    return stream.bye()


@healthy
def float32_weights_at_the_end_of_their_schedule() -> Stream:
    stream = Stream()
    for _ in range(60):
        reading(stream, 1.0, copy=False)
    return stream.bye()


def census(
    stream: Stream, state: dict[str, int], weights: str = "float32", masters: bool = False, names: tuple[str, ...] = ()
) -> Stream:
    kept = {weights: 1000}
    return stream.event(
        "weights.census", parameters=kept, trainable=kept, state=state, masters=masters, half_state=list(names)
    )


@broken
def half_optimizer_state() -> Stream:
    """The moments are kept in bfloat16 between steps."""
    stream = census(census(warm(1), {}), {"bfloat16": 2000})
    for _ in range(30):
        stream.good(65536)
    return stream


@healthy
def moments_of_eight_bits_with_scales_and_a_few_half_vectors() -> Stream:
    return census(warm(), {"uint8": 2000, "float32": 20, "bfloat16": 60}).bye()


@healthy
def half_weights_with_masters_and_moments_in_float32() -> Stream:
    return census(census(warm(), {}), {"float32": 3000}, weights="bfloat16", masters=True).bye()


def born(stream: Stream, **data: Any) -> Stream:
    """The origin of the present step's NaN or Inf, in the forward pass."""
    found = {"kind": "forward", "direction": "forward", "dtype": "float16", "nans": 0, "infs": 0, "sample": 0}
    return stream.event("origin.found", **{**found, "confidence": "hooks", "since": 1, **data})


@broken
def kernel_nan() -> Stream:
    """From one batch on the kernel of an activation makes NaN, and its formula does not."""
    stream = warm().bad(65536, last=5, loss=np.nan)
    data = {"op": "SoftplusBackward0", "absmax": 0.7, "nans": 1, "confidence": "graph", "caller": "train.py:12"}
    trial = {"trial": "kernel", "exact": 1.1, "reproducer": "reproducers/step-40-SoftplusBackward0.py"}
    born(stream, module="blocks.1", since=0, **data, **trial)
    for halvings in range(1, 12):
        stream.bad(2.0 ** (16 - halvings), last=5, loss=np.nan)
    return stream


@broken
def masked_row_nan() -> Stream:
    """From one batch on a sequence is masked from end to end."""
    stream = warm().bad(65536, last=5, loss=np.nan).bad(32768, last=5, loss=np.nan)
    data = {"class": "Softmax", "op": "SoftmaxBackward0", "absmax": 3.1, "nans": 64}
    born(stream, module="blocks.1.attention.softmax", **data)
    for halvings in range(2, 12):
        stream.bad(2.0 ** (16 - halvings), last=5, loss=np.nan)
    return stream


@broken
def activation_overflow() -> Stream:
    """What a module gives grows past 65504."""
    stream = warm().bad(65536, last=5, loss=np.nan).bad(32768, last=5, loss=np.nan)
    born(stream, module="blocks.1.fc", **{"class": "Linear", "op": "AddmmBackward0", "absmax": 812.0, "infs": 4})
    for halvings in range(2, 12):
        stream.bad(2.0 ** (16 - halvings), last=5, loss=np.nan)
    return stream


@healthy
def activations_that_leave_two_bits() -> Stream:
    return warm().event("activation.peaks", modules=[{"module": "head", "absmax": 16000.0, "share": 0.244}]).bye()
