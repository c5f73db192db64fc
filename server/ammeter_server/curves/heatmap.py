"""Turns curves into rows of a heat map, one value per range of steps.

Pure: arrays in, arrays out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ammeter.whatif.formats import FORMATS
from ammeter.wire.columns import ABSENT, Floats, Ints
from ammeter_server.curves.curve_chunk import CurveChunk

HEADROOM = "headroom"
"""A stat that follows from `grad.absmax` and the loss scale."""


def ranges_of(first: int, last: int, most: int) -> Ints:
    """Returns the beginnings of at most `most` ranges of steps, and the last end.

    Each step has its own range if there are fewer steps than `most`.
    """
    count = last + 1 - first
    parts = min(most, count)
    return np.array([first + count * part // parts for part in range(parts + 1)], np.int64)


def joined(chunks: Sequence[CurveChunk]) -> tuple[Ints, Floats]:
    """Returns the steps and values of all chunks, in order."""
    places = [np.arange(len(chunk.values)) if chunk.places is None else chunk.places for chunk in chunks]
    steps = [chunk.rows.steps_at(at) for chunk, at in zip(chunks, places, strict=True)]
    if not chunks:
        return np.zeros(0, np.int64), np.zeros(0, np.float32)
    return np.concatenate(steps), np.concatenate([chunk.values for chunk in chunks])


def headroom_of(cells: tuple[Floats, Ints], steps: Ints, scale: Floats) -> tuple[Floats, Ints]:
    """Returns the headroom of the largest gradients, at their steps.

    Absent where the loss scale of the step is unknown, unless the run has none, and for gradients of zero.

    Args:
        cells: The largest unscaled gradients of each range and their steps.
        steps: The steps with a loss scale, ascending.
        scale: The loss scale of each of them.
    """
    largest, at = cells
    factors = np.full(len(largest), np.nan if len(steps) else 1.0)
    if len(steps):
        places = np.minimum(np.searchsorted(steps, at), len(steps) - 1)
        known = steps[places] == at
        factors[known] = scale[places[known]]
    scaled = largest.astype(np.float64) * factors
    values = np.full(len(largest), ABSENT, np.float32)
    positive = np.isfinite(scaled) & (scaled > 0)
    values[positive] = math.log2(FORMATS["float16"].largest) - np.log2(scaled[positive])
    return values, np.where(positive, at, -1)


def expanded(packed: Any, count: int) -> list[int] | None:
    """Returns the indices of all tensors in the order that a process has recorded; None if it does not fit.

    It comes from outside: whatever it contains, the result has each tensor once. Tensors that joined later follow at
    the end.

    Args:
        packed: the first of some neighbouring tensors, their number, and so on.
        count: the number of tensors.
    """
    if not isinstance(packed, list) or not packed or len(packed) % 2 or not all(type(part) is int for part in packed):
        return None
    pairs = list(zip(packed[::2], packed[1::2], strict=True))
    if any(first < 0 or length < 1 for first, length in pairs) or sum(packed[1::2]) > count:
        return None
    order = [index for first, length in pairs for index in range(first, first + length)]
    known = set(order)
    if len(known) < len(order) or max(known) >= count:
        return None
    return order + [index for index in range(count) if index not in known]
