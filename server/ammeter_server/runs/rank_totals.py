"""Totals over the streams of a run.

Its latest values, counters and losses, and the number of reporting ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ammeter.counters import run as run_counters
from ammeter.counters.events import OTHER, Counters
from ammeter.verdicts import not_judged as verdicts
from ammeter.verdicts.not_judged import NotJudged, StreamCounters
from ammeter_server.db import Row
from ammeter_server.runs.latest_values import MEASURED_AT

REPORTING_NS = 30 * 10**9
"""A process without contact for this long is not reporting: fifteen of the shipper's heartbeats."""


def ranks_reporting(state: str, ranks: Iterable[Row[Any]], now: int) -> int:
    """Counts ranks with recent contact and no final record while the run lives.

    Afterwards counts the ranks that ever reported.
    """
    if state != "running":
        return len({stream.rank for stream in ranks})
    since = now - REPORTING_NS
    return len({stream.rank for stream in ranks if stream.bye_reason is None and stream.last_seen >= since})


def lead_of(streams: Iterable[Row[Any]], stream: str) -> Row[Any] | None:
    """Returns the rank with this stream, else the lowest rank of the newest attempt; None without ranks."""
    ranks = [candidate for candidate in streams if candidate.role == "rank"]
    own = next((candidate for candidate in ranks if candidate.id == stream), None)
    return own or min(ranks, key=lambda candidate: (candidate.rank, -candidate.started), default=None)


def newest_step(ranks: Iterable[Row[Any]]) -> tuple[Row[Any], int, int] | None:
    """Returns the stream with the newest step, the step and its time; None before the first step.

    A step counts when it is complete: its row may still be missing.
    """
    found = [
        (stream, step, time or 0)
        for stream in ranks
        for step, time in (
            (stream.last_step, stream.last_step_time),
            (stream.completed_step, stream.completed_time),
        )
        if step is not None
    ]
    return max(found, key=lambda newest: newest[1:][::-1], default=None)


def latest(ranks: Sequence[Row[Any]], offset_of: Callable[[str], int] | None = None) -> dict[str, Any]:
    """Returns the latest value of each scalar.

    The lowest rank has precedence, and its newest attempt over older ones.

    Args:
        ranks: The run's rank streams.
        offset_of: Returns the step of the run at which a stream's own steps begin. Without it, steps are those of the
            stream.
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
    """Returns the counters of the run.

    Without histograms and their sums, which only /metrics uses.
    """
    totals = run_counters.numbers_of_run([(stream.rank, stream.counters) for stream in ranks])
    return {name: value for name, value in totals.items() if not name.endswith("_sum")}


def precision(ranks: Sequence[Row[Any]]) -> str | None:
    """Returns the training precision according to the newest stream that knows it.

    ranks: the oldest first.
    """
    return next((stream.precision for stream in reversed(ranks) if stream.precision), None)


def not_judged(ranks: Iterable[Row[Any]]) -> list[NotJudged]:
    """Returns the verdicts that the run's readings leave open."""
    return verdicts.not_judged(*_counters_and_findings(ranks))


def count_not_judged(ranks: Iterable[Row[Any]]) -> int:
    """Returns the number of these verdicts."""
    return verdicts.count_not_judged(*_counters_and_findings(ranks))


def _counters_and_findings(ranks: Iterable[Row[Any]]) -> tuple[list[StreamCounters], set[str]]:
    """Returns the counters of each stream, and the verdicts with a finding."""
    streams: list[StreamCounters] = [(stream.counters, stream.precision) for stream in ranks]
    return streams, {verdict for counters, _ in streams for verdict in counters.get("reached", ())}


def lost(streams: Iterable[Row[Any]]) -> dict[str, dict[str, int]]:
    """Returns the records of all streams that never arrived, by reason."""
    return run_counters.losses_of(stream.lost for stream in streams)


def fallbacks(ranks: Iterable[Row[Any]], max_entries: int) -> dict[tuple[str, str], float]:
    """Returns (operator, reason) -> share of the eligible FLOPs, the largest of all ranks.

    Entries beyond `max_entries` are combined into one.
    """
    shares: dict[str, float] = {}
    for stream in ranks:
        for name, share in stream.counters.get("fallbacks", {}).items():
            shares[name] = max(share, shares.get(name, 0.0))
    return {labels: min(share, 1.0) for labels, share in _largest(shares, max_entries).items()}


def operator_seconds(ranks: Iterable[Row[Any]], max_entries: int) -> dict[tuple[str, str], float]:
    """Returns (operator, dtype) -> its seconds in a typical counted forward pass.

    They are those of the lowest rank that has any, in its newest attempt. Entries beyond `max_entries` are combined
    into one.
    """
    newest_first = sorted(ranks, key=lambda stream: (stream.rank, -stream.started))
    found = (stream.counters["operators"] for stream in newest_first if stream.counters.get("operators"))
    return _largest(next(found, {}), max_entries)


def _largest(numbers: Mapping[str, float], max_entries: int) -> dict[tuple[str, str], float]:
    """Splits names of two words, and combines entries beyond the largest ones."""
    named = {name: number for name, number in numbers.items() if name != f"{OTHER} {OTHER}"}
    ranked = sorted(named.items(), key=lambda item: (-item[1], item[0]))
    remainder = numbers.get(f"{OTHER} {OTHER}", 0.0) + sum(number for _, number in ranked[max_entries:])
    words = ((name.rpartition(" "), number) for name, number in ranked[:max_entries])
    largest = {(first, last): number for (first, _, last), number in words}
    return largest | ({(OTHER, OTHER): remainder} if remainder else {})
