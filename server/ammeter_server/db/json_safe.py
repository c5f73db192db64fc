"""What a run said, as JSON and every database can carry it: data from outside never breaks a page or a commit."""

from __future__ import annotations

import math
import reprlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import numpy as np

DEPTH = 16
"""Nesting that is kept; what lies deeper is shown as text, cut to what a line holds."""

LARGEST = 2**63
"""Integers beyond it are text; NaN and Inf are not below it either."""

MAX_CACHED_NAME_CHARS = 128
"""Characters of a key that is remembered as text: the same few come with every batch."""


def plain(value: Any, depth: int = DEPTH) -> Any:
    """The value in JSON's types only. NaN and Inf become "NaN", "Infinity", "-Infinity"; bytes become hex."""
    kind = type(value)
    if kind is float or kind is int:  # as most are, in each batch a hundred
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
        return text(value)
    if isinstance(value, bytes):
        return value.hex()
    if depth > 0 and isinstance(value, dict):
        return {_key(key): plain(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [plain(item, depth - 1) for item in value]
    return _words(value)


def number(value: float) -> float | str:
    """The number, or its name where JSON has no number for it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def text(value: str) -> str:
    """The text without what PostgreSQL refuses to store: NUL, and surrogates that are no character."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()


def instant(nanoseconds: int | None) -> str | None:
    """RFC 3339 in UTC, to the millisecond; None for what has not happened. Years beyond 9999 are cut to it."""
    if nanoseconds is None:
        return None
    try:
        when = datetime.fromtimestamp(nanoseconds / 1e9, UTC)
    except (OverflowError, OSError, ValueError):
        when = datetime.max.replace(tzinfo=UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _key(key: Any) -> str:
    if isinstance(key, str):
        return _name(key) if len(key) <= MAX_CACHED_NAME_CHARS else text(key)
    return _words(key)


@lru_cache(4096)
def _name(key: str) -> str:
    return text(key)


def _words(value: Any) -> str:
    return text(reprlib.repr(value) if isinstance(value, dict | list | tuple | set | frozenset) else str(value))
