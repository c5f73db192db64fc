"""Totals of a run, from the counters of its streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ammeter.counters import histograms
from ammeter.counters.events import Counters
from ammeter.counters.stream import GAUGES, SUMS

Losses = Mapping[str, Mapping[str, int]]
"""reason -> {steps, events} of lost records."""


RankCounters = Sequence[tuple[int, Mapping[str, Any]]]
"""(rank, counters) of the rank streams of a run."""


def of_run(streams: RankCounters) -> Counters:
    """Returns the counters of a run with its histograms."""
    attempts = _by_rank(streams)
    totals = _numbers(attempts)
    for column in histograms.BOUNDS:
        ranks = [_histogram(rank, column) for rank in attempts]
        totals[f"{column}_histogram"] = histograms.highest(ranks, column)
    return totals


def numbers_of_run(streams: RankCounters) -> Counters:
    """Returns the counters of a run without its histograms.

    Attempts of a rank add up; then the largest over the ranks counts. Samples are each rank's own share of the batch,
    so they add up over ranks.
    """
    return _numbers(_by_rank(streams))


def losses_of(streams: Iterable[Losses]) -> dict[str, dict[str, int]]:
    """Adds up the lost records of all streams by reason."""
    totals: dict[str, dict[str, int]] = {}
    for losses in streams:
        for reason, counts in losses.items():
            total = totals.setdefault(reason, {"steps": 0, "events": 0})
            for name in total:
                total[name] += counts.get(name, 0)
    return totals


def _by_rank(streams: RankCounters) -> list[list[Mapping[str, Any]]]:
    """Returns the counters of each rank's attempts."""
    ranks: dict[int, list[Mapping[str, Any]]] = {}
    for rank, counters in streams:
        ranks.setdefault(rank, []).append(counters)
    return list(ranks.values())


def _numbers(ranks: Sequence[Sequence[Mapping[str, Any]]]) -> Counters:
    sums = [attempts[0] if len(attempts) == 1 else _added(attempts) for attempts in ranks]
    totals: Counters = {name: max([rank.get(name, 0) for rank in sums], default=0) for name in SUMS + GAUGES}
    totals["samples"] = sum([rank.get("samples", 0) for rank in sums])
    return totals


def _added(attempts: Sequence[Mapping[str, Any]]) -> Counters:
    """Returns the numbers of a rank over its attempts."""
    numbers: Counters = {name: sum([attempt.get(name, 0) for attempt in attempts]) for name in SUMS}
    return numbers | {name: max([attempt.get(name, 0) for attempt in attempts]) for name in GAUGES}


def _histogram(attempts: Sequence[Mapping[str, Any]], column: str) -> list[int]:
    """Returns the histogram of a rank: the sum over its attempts."""
    first, *others = (histograms.of(attempt, column) for attempt in attempts)
    for other in others:
        first = histograms.added(first, other)
    return first
