"""Streams of runs whose numbers went wrong: weights, scale, optimizer state, activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.agent.streams import Stream, broken, warm


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
