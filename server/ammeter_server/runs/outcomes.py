"""What a run that is over comes to, beside how its processes ended: whether its numbers were finite, its validation as
good as its baseline's, its time as expected. The fleet's counters have each once; objectives.py asks for them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ammeter.verdicts.framework.finding import Finding

HEALTH = frozenset({"nonfinite-loss", "nonfinite-gradient", "scale-collapse"})
"""Verdicts whose page, where it still holds at the end, says that nothing was learnt any more."""

POISONED = "nonfinite-weights"
DRIFTED = "validation-drift"

EXPECTED = "expected_hours"
"""The tag in which a run says how long it should take at most."""

MAX_EXPECTED_HOURS = 100_000.0
"""Of an expectation that is believed: eleven years."""


def of_run(state: str, byes: Collection[str | None], findings: Iterable[Finding], losses: Iterable[Any]) -> str:
    """ended | diverged | failed | lost. byes: of the last life of each rank; losses: the last loss of each."""
    if state != "ended":
        return state
    if "exception" in byes or "signal" in byes:
        return "failed"
    return "diverged" if has_diverged(findings, losses) else "ended"


def has_diverged(findings: Iterable[Finding], losses: Iterable[Any]) -> bool:
    """Whether it ended with weights or a loss that are not finite, or in the middle of steps that all were skipped."""
    held = [finding for finding in findings if finding.active]
    poisoned = any(finding.verdict == POISONED for finding in held)
    stuck = any(finding.verdict in HEALTH and finding.severity == "page" for finding in held)
    return poisoned or stuck or any(is_nonfinite(loss) for loss in losses)


def is_nonfinite(value: Any) -> bool:
    """Of a number as the tables have it, where NaN and Inf are words."""
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, float) and not math.isfinite(value)


def of_validation(numbers: Mapping[str, Any], findings: Iterable[Finding]) -> str | None:
    """held | drifted; None where no validation was held against a baseline's."""
    if numbers.get("validation_delta") is None:
        return None
    return "drifted" if any(finding.verdict == DRIFTED and finding.active for finding in findings) else "held"


def of_time(tags: Mapping[str, Any], started: int, until: int, *, over: bool) -> str | None:
    """expected | late, in ns; None where the run says nothing of it, or may still be in time."""
    try:
        hours = float(str(tags.get(EXPECTED) or ""))
    except ValueError:
        return None
    if not 0 < hours <= MAX_EXPECTED_HOURS or not started:
        return None
    if until - started > hours * 3600e9:
        return "late"
    return "expected" if over else None
