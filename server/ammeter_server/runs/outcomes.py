"""The outcome of a finished run, beside the ends of its processes.

Whether its numbers were finite, its validation as good as its baseline's, and its duration as expected. The fleet
counters include each outcome once; the objectives in prometheus/slo.py use them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from ammeter.verdicts.framework.finding import Finding
from ammeter_server.db import Row

NO_PROGRESS = frozenset({"nonfinite-loss", "nonfinite-gradient", "scale-collapse"})
"""Verdicts that mean, with severity page and still active at the end, that the training learned nothing any more."""

POISONED = "nonfinite-weights"
DRIFTED = "validation-drift"

EXPECTED = "expected_hours"
"""The tag with the longest duration that the user expects of the run, in hours."""

MAX_EXPECTED_HOURS = 100_000.0
"""Largest plausible expectation: eleven years. Larger ones are ignored."""


def of_run(state: str, byes: Collection[str | None], findings: Iterable[Finding], losses: Iterable[Any]) -> str:
    """Returns ended | diverged | failed | lost.

    byes: end reasons of each rank's last life. losses: the last loss of each rank.
    """
    if state != "ended":
        return state
    if "exception" in byes or "signal" in byes:
        return "failed"
    return "diverged" if has_diverged(findings, losses) else "ended"


def now_of(run: Row[Any], ranks: Iterable[Row[Any]]) -> str:
    """Returns the outcome of a run as it is now, or `running`.

    The outcome in the fleet totals is that of a run's first end. A run that failed and was resumed may have ended well
    since.

    Args:
        run: Its row with `state` and `fleet_progress`.
        ranks: The streams of its ranks.
    """
    last = {stream.rank: stream for stream in sorted(ranks, key=lambda stream: stream.started)}.values()
    outcome = of_run(
        run.state, {stream.bye_reason for stream in last}, (), (stream.latest.get("loss") for stream in last)
    )
    counted = run.fleet_progress.get("outcome")
    return "diverged" if outcome == "ended" and counted == "diverged" else outcome


def has_diverged(findings: Iterable[Finding], losses: Iterable[Any]) -> bool:
    """Whether the run ended with non-finite weights or loss, or while all steps were skipped."""
    active = [finding for finding in findings if finding.active]
    poisoned = any(finding.verdict == POISONED for finding in active)
    stuck = any(finding.verdict in NO_PROGRESS and finding.severity == "page" for finding in active)
    return poisoned or stuck or any(is_nonfinite(loss) for loss in losses)


def is_nonfinite(value: Any) -> bool:
    """Whether a stored number is not finite. The tables store NaN and Inf as strings."""
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    return isinstance(value, float) and not math.isfinite(value)


def of_validation(numbers: Mapping[str, Any], findings: Iterable[Finding]) -> str | None:
    """Returns held | drifted; None if no validation was compared with a baseline's."""
    if numbers.get("validation_delta") is None:
        return None
    return "drifted" if any(finding.verdict == DRIFTED and finding.active for finding in findings) else "held"


def of_time(tags: Mapping[str, Any], started: int, until: int, *, over: bool) -> str | None:
    """Returns expected | late. started, until: in ns.

    None if the run has no valid expectation, or is running and not late.
    """
    try:
        hours = float(str(tags.get(EXPECTED) or ""))
    except ValueError:
        return None
    if not 0 < hours <= MAX_EXPECTED_HOURS or not started:
        return None
    if until - started > hours * 3600e9:
        return "late"
    return "expected" if over else None
