"""Reports the time in each operator, summed over several counted steps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.durations import Key, Time
from ammeter.probes.kernels.step_census import StepCensus

if TYPE_CHECKING:
    from ammeter.recording.row import Row

MAX_REPORTED = 8
"""Operators named in a report, those with the most time; the others are one entry."""

REPORT_CENSUSES = 64
"""Forward passes are reported with the 1st, 2nd, 4th, 8th ... counted step, and with each multiple of this number. A
report describes the steps since the one before, so a change of speed shows in a long run, too."""

OTHER = "_other"


class DurationReports:
    """The times since the last report of the forward passes, and whether backward was reported."""

    def __init__(self) -> None:
        self._censuses = 0
        self._since = _Sum()
        self._is_backward_reported = False

    def report(self, row: Row, census: StepCensus) -> None:
        """Adds the events of a step to its row."""
        if census.calls:
            self._censuses += 1
            self._since.add(census.calls, census.duration)
            if self._censuses & (self._censuses - 1) == 0 or self._censuses % REPORT_CENSUSES == 0:
                self._emit(row, "forward", self._since)
                self._since = _Sum()
        if census.backward is not None and not self._is_backward_reported:
            self._is_backward_reported = True
            backward, seconds = census.backward
            self._emit(row, "backward", _Sum().add([backward], seconds))

    def _emit(self, row: Row, phase: str, times: _Sum) -> None:
        if times.operators:
            row.events.append(("kernels.timed", {"phase": phase} | times.data()))


class _Sum:
    """The times of some steps."""

    def __init__(self) -> None:
        self.operators: dict[Key, Time] = {}
        self._steps = 0
        self._seconds = 0.0
        self._is_complete = True

    def add(self, calls: Iterable[Census], seconds: float) -> _Sum:
        self._steps += 1
        self._seconds += seconds
        for census in calls:
            self._is_complete &= census.is_complete and census.durations.is_complete
            for key, time in census.durations.times():
                self.operators.setdefault(key, Time()).add(time.calls, time.seconds)
        return self

    def data(self) -> dict[str, Any]:
        ranked = sorted(self.operators.items(), key=lambda entry: -entry[1].seconds)
        named, others = ranked[:MAX_REPORTED], [time for _, time in ranked[MAX_REPORTED:]]
        if others:
            rest = Time(sum(time.calls for time in others), sum(time.seconds for time in others))
            named.append(((OTHER, OTHER), rest))
        return {
            "steps": self._steps,
            "seconds": self._seconds,
            "operator_seconds": sum(time.seconds for time in self.operators.values()),
            "operators": [
                {"op": op, "dtype": dtype, "calls": time.calls, "seconds": time.seconds} for (op, dtype), time in named
            ],
            "whole": self._is_complete,
        }
