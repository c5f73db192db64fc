"""Prices of devices per hour, by the model name that torch reports and by a tag of the run."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

Prices = tuple[tuple[str, float], ...]
"""(model, dollars per device and hour); the first match applies.

The model may have the wildcards * and ?, and a tag of the run behind it: `NVIDIA H200[tier=spot]`.
"""

MAX_DOLLARS_PER_HOUR = 10_000.0
"""Maximum plausible price in dollars per hour."""

EXAMPLE = "NVIDIA H200=4.10,NVIDIA A100*=2.00,*=1.00"

_TAGGED = re.compile(r"(.*)\[([^=\[\]]+)=([^\[\]]*)\]")
"""A model, and the tag that a run needs for the price."""


def read(text: str) -> Prices:
    """Parses the prices of a text.

    Raises:
        ValueError: A price is invalid; the message contains it.
    """
    return tuple(_price(price.strip()) for price in text.split(",") if price.strip())


def of(prices: Sequence[tuple[str, float]], model: str | None, tags: Mapping[str, Any] | None = None) -> float | None:
    """Dollars per hour of a device of a run with these tags, from the first matching entry; None without a match."""
    return next((price for pattern, price in prices if _applies(pattern, model or "", tags or {})), None)


def _applies(pattern: str, model: str, tags: Mapping[str, Any]) -> bool:
    tagged = _TAGGED.fullmatch(pattern)
    if tagged:
        pattern, key, value = (part.strip() for part in tagged.groups())
        if not fnmatchcase(str(tags.get(key, "")), value):
            return False
    return fnmatchcase(model.casefold(), pattern.casefold())


def _price(text: str) -> tuple[str, float]:
    model, equals, number = text.rpartition("=")
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not equals or not _TAGGED.sub(r"\1", model).strip() or not 0 <= price <= MAX_DOLLARS_PER_HOUR:
        raise ValueError(
            f"is {text[:80]!r}; use a model, = and dollars per device and hour "
            f"up to {MAX_DOLLARS_PER_HOUR:.0f}: {EXAMPLE}"
        )
    return model.strip(), price
