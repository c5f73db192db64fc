"""Curves as rows of a heat map: of each stretch of steps the value that a person has to see. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ammeter.block import ABSENT, Floats, Ints
from ammeter_server.curves import Piece


def stretches(first: int, last: int, most: int) -> Ints:
    """Where so many stretches of steps begin, or one for each step where there are fewer, and the end of the last."""
    count = last + 1 - first
    parts = min(most, count)
    return np.array([first + count * part // parts for part in range(parts + 1)], np.int64)


def filled(pieces: Sequence[Piece], edges: Ints, lowest: bool = False) -> Floats:
    """float32[stretches]: of each the largest value, or the smallest; NaN or else Inf where one was there, absent where
    nothing was measured."""
    high, low = np.full(len(edges) - 1, -np.inf, np.float32), np.full(len(edges) - 1, np.inf, np.float32)
    there = np.zeros(len(edges) - 1, np.bool_)
    for piece in pieces:
        bounds = piece.rows.bounds(edges)
        starts = bounds if piece.places is None else np.searchsorted(piece.places, bounds)
        starts = np.minimum(starts, len(piece.values))
        some = np.flatnonzero(starts[:-1] < starts[1:])
        if not len(some):
            continue
        values = piece.values[: starts[-1]]
        high[some] = np.maximum(high[some], np.maximum.reduceat(values, starts[some]))
        low[some] = np.minimum(low[some], np.minimum.reduceat(values, starts[some]))
        there[some] = True
    shown, other = (low, high) if lowest else (high, low)
    shown = np.where(np.isinf(other) & np.isfinite(shown), other, shown)
    return np.where(there, shown, ABSENT)
