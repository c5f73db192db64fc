"""Which values of a `values.logged` event belong to the row of its step."""

from __future__ import annotations

from typing import Any

from ammeter.wire.frames import SCALARS, Event

EVENT = "values.logged"

LOGGED_COLUMNS = ("loss", "val_loss", "samples")
"""Columns of every stream that run.log can set, beside the program's own names."""


def may_be_logged(name: str) -> bool:
    return name in LOGGED_COLUMNS or (":" not in name and name not in SCALARS)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def logged_values(event: Event) -> dict[str, float]:
    """Returns the numbers by column; empty for another event."""
    if event.name != EVENT:
        return {}
    return {name: value for name, value in event.data.items() if is_number(value) and may_be_logged(name)}
