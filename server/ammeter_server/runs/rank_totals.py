"""What the streams of a run come to together: its latest values, what it counted and lost, who of it is there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ammeter_server.db import Row
from ammeter_server.runs import stream_counters
from ammeter_server.runs.event_counters import OTHER, Counters
from ammeter_server.runs.stream_counters import MEASURED_AT

REPORTING_SECONDS = 30
"""A rank not heard for this long does not count as reporting: fifteen of the shipper's heartbeats."""


def ranks_reporting(state: str, ranks: Iterable[Row[Any]], now: int) -> int:
    """While the run lives: ranks heard a moment ago that said no goodbye. Afterwards: ranks that ever reported."""
    if state != "running":
        return len({stream.rank for stream in ranks})
    since = now - REPORTING_SECONDS * 10**9
    return len({stream.rank for stream in ranks if stream.bye_reason is None and stream.heard >= since})


def latest(ranks: Sequence[Row[Any]], offset_of: Callable[[str], int] | None = None) -> dict[str, Any]:
    """The last value of each scalar: the lowest rank's word stands, the newest life of it before older ones.

    Args:
        offset_of: gives the step of the run at which a stream's own steps begin. Without it steps are the stream's.
    """
    values: dict[str, Any] = {}
    for stream in sorted(ranks, key=lambda stream: (-stream.rank, stream.started)):
        values.update(stream.latest)
        offset = offset_of(stream.id) if offset_of else 0
        for name in MEASURED_AT if offset else ():
            step = stream.latest.get(name)
            if isinstance(step, int | float):  # a program may log a value of this name
                values[name] = step + offset
    return values


def counters_of(ranks: Iterable[Row[Any]]) -> Counters:
    """What the run counted; its histograms, and their sums, are left to /metrics."""
    counted = stream_counters.of_run([(stream.rank, stream.counters) for stream in ranks])
    return {name: value for name, value in counted.items() if not name.endswith(("_histogram", "_sum"))}


def precision(ranks: Sequence[Row[Any]]) -> str | None:
    """What the newest stream that knows it trains in. ranks: the oldest first."""
    return next((stream.precision for stream in reversed(ranks) if stream.precision), None)


def lost(streams: Iterable[Row[Any]]) -> dict[str, dict[str, int]]:
    """Records that never arrived, by reason, of all streams."""
    total: dict[str, dict[str, int]] = {}
    for stream in streams:
        for reason, counts in stream.lost.items():
            mine = total.setdefault(reason, {"steps": 0, "events": 0})
            for name in mine:
                mine[name] += counts.get(name, 0)
    return total


def fallbacks(ranks: Iterable[Row[Any]], most: int) -> dict[tuple[str, str], float]:
    """(operator, reason) -> share of the eligible FLOPs, the largest of all ranks; beyond the most, all together."""
    shares: dict[str, float] = {}
    for stream in ranks:
        for name, share in stream.counters.get("fallbacks", {}).items():
            shares[name] = max(share, shares.get(name, 0.0))
    other = shares.pop(f"{OTHER} {OTHER}", 0.0)
    ranked = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    rest = min(other + sum(share for _, share in ranked[most:]), 1.0)
    told = {(op, reason): share for name, share in ranked[:most] for op, _, reason in [name.rpartition(" ")]}
    return told | ({(OTHER, OTHER): rest} if rest else {})
