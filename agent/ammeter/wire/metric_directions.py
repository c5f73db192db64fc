"""Which values of a metric are better, as a run declares it: a tag `better.val_accuracy` that says `higher`."""

from __future__ import annotations

LOWER, HIGHER = "lower", "higher"
DIRECTIONS = (LOWER, HIGHER)

BETTER = "better."
"""Begins the tags."""


def check_direction(name: object, direction: object) -> None:
    """Raises ValueError where it is not said plainly which values of a metric are better."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"better names the metric {name!r}; use the name that run.log() has it under: val_accuracy")
    if direction not in DIRECTIONS:
        raise ValueError(f"better[{name!r}] is {direction!r}; use 'higher' or 'lower'")
