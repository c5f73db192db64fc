"""Prices of devices per hour, by the model name that torch reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

Prices = tuple[tuple[str, float], ...]
"""(model with the wildcards * and ?, dollars per device and hour); the first match applies."""

MAX_DOLLARS_PER_HOUR = 10_000.0
"""Maximum plausible price in dollars per hour."""

EXAMPLE = "NVIDIA H200=4.10,NVIDIA A100*=2.00,*=1.00"


def read(text: str) -> Prices:
    """Parses the prices of a text.

    Raises:
        ValueError: A price is invalid; the message contains it.
    """
    return tuple(_price(price.strip()) for price in text.split(",") if price.strip())


def of(prices: Sequence[tuple[str, float]], model: str | None) -> float | None:
    """Dollars per hour of a device, from the first matching entry; None without a match."""
    name = (model or "").casefold()
    return next((price for pattern, price in prices if fnmatchcase(name, pattern.casefold())), None)


def _price(text: str) -> tuple[str, float]:
    model, equals, number = text.rpartition("=")
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not equals or not model.strip() or not 0 <= price <= MAX_DOLLARS_PER_HOUR:
        raise ValueError(
            f"is {text[:80]!r}; use a model, = and dollars per device and hour "
            f"up to {MAX_DOLLARS_PER_HOUR:.0f}: {EXAMPLE}"
        )
    return model.strip(), price
