"""Which values of a metric are better: the tag `better.val_accuracy` is `higher`."""

from __future__ import annotations

LOWER, HIGHER = "lower", "higher"
DIRECTIONS = (LOWER, HIGHER)

BETTER = "better."
"""Prefix of these tags."""


def check_direction(name: object, direction: object) -> None:
    """Raises ValueError if the name of the metric or its direction is not valid."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"better names the metric {name!r}; use the name that run.log() has it under: val_accuracy")
    if direction not in DIRECTIONS:
        raise ValueError(f"better[{name!r}] is {direction!r}; use 'higher' or 'lower'")
