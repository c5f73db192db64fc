"""What a run said, as JSON and every database can carry it: data from outside never breaks a page or a commit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

DEPTH = 16
"""Nesting that is kept; what lies deeper is shown as text."""


def plain(value: Any, depth: int = DEPTH) -> Any:
    """The value in JSON's types only. NaN and Inf become "NaN", "Infinity", "-Infinity"; bytes become hex."""
    if isinstance(value, np.generic):
        value = value.item()
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
        return {text(str(key)): plain(each, depth - 1) for key, each in value.items()}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [plain(each, depth - 1) for each in value]
    return text(str(value))


def number(value: float) -> float | str:
    """The number, or its name where JSON has no number for it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def text(value: str) -> str:
    """The text without what PostgreSQL refuses to store: NUL, and surrogates that are no character."""
    return value.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
