"""Reports what censuses have counted, if it differs from the last report."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ammeter.probes.kernels.census import Census, Summary, Work, summary
from ammeter.probes.kernels.round_trips import RoundTrip
from ammeter.probes.kernels.step_census import StepCensus
from ammeter.torch_hooks import call_site

if TYPE_CHECKING:
    from ammeter.recording.row import Row

MAX_FALLBACKS = 20
"""Fallbacks reported in a run. The same operator in modules with similar names, such as blocks.*.mlp, counts once."""

MIN_FLOPS_SHARE = 0.001
"""Share of the eligible FLOPs below which a fallback is not reported, because it hardly affects the speed."""

MIN_SHARE_CHANGE = 0.01
"""The census is reported again after its low-precision share has changed by this much."""

MIN_BYTES_GROWTH = 2.0
"""Round trips are reported again when they move this many times the bytes per FLOP of the last report."""


class Reports:
    """What has been reported of a run."""

    def __init__(self) -> None:
        self._reported: tuple[float, tuple[str, ...]] | None = None
        self._is_backward_reported = False
        self._fallbacks: set[tuple[str, str, str]] = set()
        self._bytes_per_flop = 0.0

    def report(self, row: Row, census: StepCensus) -> None:
        """Adds the events of a step to its row."""
        if census.calls:
            self._report_forward(row, census)
        if census.backward is not None:
            self._report_backward(row, *census.backward)

    def _report_forward(self, row: Row, census: StepCensus) -> None:
        result = summary(census.calls)
        row.scalars["cast_bytes"] = sum(call.cast_bytes for call in census.calls)
        if not result.eligible or not (census.is_region or result.low):
            return
        share = result.low / result.eligible
        row.scalars["low_precision_share"] = share
        backends = tuple(attention_of(census.calls))
        reported, reported_backends = self._reported or (math.inf, ())
        if abs(share - reported) >= MIN_SHARE_CHANGE or backends != reported_backends:
            self._reported = (share, backends)
            whole = {"seconds": census.duration, "whole": census.is_complete}
            row.events.append(("kernels.census", _counts("forward", census.calls, result) | whole))
        for work in result.fallbacks:
            self._report_fallback(row, work, result)
        self._report_round_trips(row, census.calls, result)

    def _report_backward(self, row: Row, census: Census, seconds: float) -> None:
        """Reports the first backward pass with matrix products."""
        census.is_region = True
        result = summary([census])
        if result.eligible and not self._is_backward_reported:
            self._is_backward_reported = True
            whole = {"seconds": seconds, "whole": census.is_complete}
            row.events.append(("kernels.census", _counts("backward", [census], result) | whole))

    def _report_fallback(self, row: Row, work: Work, result: Summary) -> None:
        key = key_of(work)
        equal = [fallback for fallback in result.fallbacks if key_of(fallback) == key]
        flops = sum(fallback.flops for fallback in equal)
        if key in self._fallbacks or len(self._fallbacks) >= MAX_FALLBACKS or flops < MIN_FLOPS_SHARE * result.eligible:
            return
        self._fallbacks.add(key)
        data = {
            "op": work.op,
            "module": work.module,
            "modules": len(equal),
            "reason": work.reason,
            "dtype": str(work.dtype).removeprefix("torch."),
            "shape": work.shape,
            "caller": work.caller,
            "flops_share": flops / result.eligible,
        }
        row.events.append(("kernel.fallback", data))

    def _report_round_trips(self, row: Row, calls: Sequence[Census], result: Summary) -> None:
        trips = [trip for call in calls for trip in call.round_trips.places.values()]
        moved = sum(trip.moved_bytes for trip in trips)
        bytes_per_flop = moved / max(1, result.low)
        if moved and bytes_per_flop >= MIN_BYTES_GROWTH * self._bytes_per_flop:
            self._bytes_per_flop = bytes_per_flop
            row.events.append(("kernels.round_trips", _round_trips(trips) | {"flops_low": result.low}))


def _round_trips(trips: Sequence[RoundTrip]) -> dict[str, Any]:
    """The sum of all, and the line that moves most bytes."""
    by_line: dict[Any, list[RoundTrip]] = {}
    for trip in trips:
        by_line.setdefault(trip.spot, []).append(trip)
    worst = max(by_line.values(), key=_moved)
    first = max(worst, key=lambda trip: trip.moved_bytes)
    return {
        "casts": sum(trip.casts for trip in trips),
        "moved_bytes": _moved(trips),
        "lines": len(by_line),
        "caller": call_site.written(first.spot),
        "returned_at": call_site.written(first.returned_at),
        "caller_bytes": _moved(worst),
        "module": first.module,
        "modules": len({trip.module for trip in worst}),
        "dtype": str(first.dtype).removeprefix("torch."),
    }


def _moved(trips: Iterable[RoundTrip]) -> int:
    return sum(trip.moved_bytes for trip in trips)


def _counts(phase: str, calls: Sequence[Census], result: Summary) -> dict[str, Any]:
    return {
        "phase": phase,
        "flops_eligible": result.eligible,
        "flops_low": result.low,
        "share": result.low / result.eligible,
        "casts": sum(call.casts for call in calls),
        "cast_bytes": sum(call.cast_bytes for call in calls),
        "recast_bytes": sum(call.recast_bytes for call in calls),
        "uncached_bytes": sum(call.uncached_bytes for call in calls),
        "frozen_bytes": sum(call.frozen_bytes for call in calls),
        "attention": attention_of(calls),
    }


def attention_of(calls: Sequence[Census]) -> list[str]:
    """Returns the attention backends that ran."""
    return sorted({backend for call in calls for backend in call.attention})


def key_of(work: Work) -> tuple[str, str, str]:
    """Returns the kind of a fallback: equal for modules whose names differ in numbers only."""
    return work.op, re.sub(r"\b\d+\b", "*", work.module), work.reason
