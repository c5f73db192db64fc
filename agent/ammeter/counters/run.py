"""Totals of a run, from the counters of its streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ammeter.counters import histograms
from ammeter.counters.events import Counters
from ammeter.counters.stream import GAUGES, SUMS

Losses = Mapping[str, Mapping[str, int]]
"""reason -> {steps, events} of lost records."""


def of_run(streams: Sequence[tuple[int, Mapping[str, Any]]]) -> Counters:
    """Returns the counters of a run from (rank, counters) of its rank streams.

    Lives of a rank add up; then the largest over the ranks counts. Samples are each rank's own share of the batch, so
    they add up over ranks.
    """
    if len(streams) == 1:
        return _of_stream(streams[0][1])
    ranks: dict[int, Counters] = {}
    for rank, counters in streams:
        _add_life(ranks.setdefault(rank, {}), counters)
    totals: Counters = {name: max((sums[name] for sums in ranks.values()), default=0) for name in SUMS + GAUGES}
    totals["samples"] = sum(sums["samples"] for sums in ranks.values())
    for column in histograms.BOUNDS:
        name = f"{column}_histogram"
        totals[name] = histograms.highest([sums[name] for sums in ranks.values()], column)
    return totals


def losses_of(streams: Iterable[Losses]) -> dict[str, dict[str, int]]:
    """Adds up the lost records of all streams by reason."""
    totals: dict[str, dict[str, int]] = {}
    for losses in streams:
        for reason, counts in losses.items():
            total = totals.setdefault(reason, {"steps": 0, "events": 0})
            for name in total:
                total[name] += counts.get(name, 0)
    return totals


def _of_stream(counters: Mapping[str, Any]) -> Counters:
    """Returns the same for a run with one stream, the most frequent case, without sums."""
    numbers = {name: counters.get(name, 0) for name in SUMS + GAUGES}
    return numbers | {f"{column}_histogram": histograms.of(counters, column) for column in histograms.BOUNDS}


def _add_life(totals: Counters, counters: Mapping[str, Any]) -> None:
    """Adds one attempt of a rank to its totals."""
    for name in SUMS:
        totals[name] = totals.get(name, 0) + counters.get(name, 0)
    for name in GAUGES:
        totals[name] = max(totals.get(name, 0), counters.get(name, 0))
    for column in histograms.BOUNDS:
        life = histograms.of(counters, column)
        totals[f"{column}_histogram"] = histograms.added(histograms.of(totals, column), life)
