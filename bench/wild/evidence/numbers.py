"""Numbers of a finding's evidence, and how they are compared with recorded ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.wild.oracle import Row
from bench.wild.truth import Truth

Finding = dict[str, Any]
Check = Callable[[Finding, Truth], Iterator[str]]

TOLERANCE = 0.02
"""Relative difference of a number from the recorded one: texts have three digits."""

SHARE_TOLERANCE = 0.02
"""Difference of two shares."""


def is_near(said: float, real: float | None, tolerance: float = TOLERANCE) -> bool:
    return real is not None and abs(said - real) <= tolerance * max(abs(said), abs(real))


def number_of(finding: Finding, name: str) -> float | None:
    """A finite number of the evidence; None for anything else."""
    value = (finding.get("evidence") or {}).get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def count_of(finding: Finding, name: str) -> int:
    return int(number_of(finding, name) or 0)


def span_of(finding: Finding) -> tuple[int, int]:
    first: int = finding["first_step"]
    last: int = finding.get("last_step", first)
    return first, last


def norms_of(row: Row) -> list[float]:
    """All norms of a step's gradients: as they were, and divided by the scale."""
    known = [norm for norm in row.norms if norm is not None]
    return known + [norm / row.used_scale for norm in known if row.used_scale]


def has_norm(rows: Sequence[Row], said: float) -> bool:
    return any(is_near(said, norm) for row in rows for norm in norms_of(row))


def is_among(values: Sequence[float | None], said: float) -> bool:
    """Whether a number is in the range of the known values."""
    known = [value for value in values if value is not None]
    margin = TOLERANCE * abs(said)
    return bool(known) and min(known) - margin <= said <= max(known) + margin


def exactly(what: str, said: int, real: int) -> Iterator[str]:
    if said != real:
        yield f"{said} {what}, but there were {real}"


def at_most(what: str, said: int, real: int) -> Iterator[str]:
    if said > real:
        yield f"{said} {what}, but there were {real}"
