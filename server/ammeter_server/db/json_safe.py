"""Converts data of runs to values that JSON and every database accept.

Data from outside never breaks a page or a commit.
"""

from __future__ import annotations

import math
import reprlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

from ammeter.wire.printable import storable

DEPTH = 16
"""Levels of nesting that are kept. Deeper values become text, shortened to one line."""

LARGEST = 2**63
"""Integers beyond 64 bits become text. NaN and Inf fail this comparison too, so they leave the fast path."""

NUMBERS = (float, int)
"""Types of most values: every batch writes about a hundred numbers, without a call for each."""

MAX_CACHED_NAME_CHARS = 128
"""Characters of a key whose text is cached: every batch brings the same few keys."""


def plain(value: Any, depth: int = DEPTH) -> Any:
    """Converts a value to JSON's types.

    NaN and Inf become "NaN", "Infinity", "-Infinity"; bytes become hex.
    """
    kind = type(value)
    if kind in NUMBERS:
        return value if -LARGEST < value < LARGEST else _of_python(value, depth)
    if isinstance(value, np.generic):
        value = value.item()
    return _of_python(value, depth)


def _of_python(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else str(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, bytes):
        return value.hex()
    if depth > 0 and isinstance(value, dict):
        return {
            _name(key) if type(key) is str and len(key) <= MAX_CACHED_NAME_CHARS else _key(key): item
            if type(item) in NUMBERS and -LARGEST < item < LARGEST
            else plain(item, depth - 1)
            for key, item in value.items()
        }
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [
            item if type(item) in NUMBERS and -LARGEST < item < LARGEST else plain(item, depth - 1) for item in value
        ]
    return _words(value)


def number(value: float) -> float | str:
    """Returns the number, or its name if it is NaN or Inf."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def instant(nanoseconds: int | None) -> str | None:
    """Formats a time in ns as RFC 3339 in UTC, to the millisecond.

    None stays None. Times beyond the year 9999 become its end.
    """
    if nanoseconds is None:
        return None
    try:
        when = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, OSError, ValueError):
        when = datetime.max.replace(tzinfo=UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _key(key: Any) -> str:
    return storable(key) if isinstance(key, str) else _words(key)


@lru_cache(4096)
def _name(key: str) -> str:
    return storable(key)


def _words(value: Any) -> str:
    return storable(reprlib.repr(value) if isinstance(value, dict | list | tuple | set | frozenset) else str(value))
