"""What a device costs per hour, by its model: read from a setting, and asked by the name that torch has for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase

Prices = tuple[tuple[str, float], ...]
"""(model, with * and ? for any; dollars per device and hour), in the order in which they are asked."""

MAX_DOLLARS_PER_HOUR = 10_000.0
"""Dollars per hour that are believed."""

EXAMPLE = "NVIDIA H200=4.10,NVIDIA A100*=2.00,*=1.00"


def read(text: str) -> Prices:
    """The prices that a text says. Raises ValueError that names the one that is wrong."""
    return tuple(_price(price.strip()) for price in text.split(",") if price.strip())


def of(prices: Sequence[tuple[str, float]], model: str | None) -> float | None:
    """Dollars per hour of a device, by the first entry that fits; None where none does."""
    asked = (model or "").casefold()
    return next((price for fits, price in prices if fnmatchcase(asked, fits.casefold())), None)


def _price(said: str) -> tuple[str, float]:
    model, equals, number = said.rpartition("=")
    try:
        price = float(number)
    except ValueError:
        price = math.nan
    if not equals or not model.strip() or not 0 <= price <= MAX_DOLLARS_PER_HOUR:
        raise ValueError(
            f"says {said[:80]!r}; use a model, = and dollars per device and hour "
            f"up to {MAX_DOLLARS_PER_HOUR:.0f}: {EXAMPLE}"
        )
    return model.strip(), price
