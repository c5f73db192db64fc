"""Reports the time in each operator, summed over several counted steps."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median_low
from typing import TYPE_CHECKING, Any

from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.step_census import StepCensus
from ammeter.probes.kernels.timing.durations import Key, Time

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


class _Operator:
    """The time in one operator in some steps.

    Attributes:
        calls, seconds: of all steps.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.seconds = 0.0
        self._per_call: list[float] = []

    def add(self, step: Time) -> None:
        self.calls += step.calls
        self.seconds += step.seconds
        self._per_call.append(step.seconds / step.calls)

    def typical_seconds(self, steps: int) -> float:
        """Returns its time in a step, from the median over the steps of its time per call.

        So a step in which another process had the core does not count.
        """
        return self.calls / steps * median_low(self._per_call)


class _Sum:
    """The times of some steps."""

    def __init__(self) -> None:
        self.operators: dict[Key, _Operator] = {}
        self._steps = 0
        self._seconds = 0.0
        self._is_complete = True

    def add(self, calls: Iterable[Census], seconds: float) -> _Sum:
        """Adds a step."""
        self._steps += 1
        self._seconds += seconds
        step: dict[Key, Time] = {}
        for census in calls:
            self._is_complete &= census.is_complete and census.durations.is_complete
            for key, time in census.durations.times():
                step.setdefault(key, Time()).add(time.calls, time.seconds)
        for key, time in step.items():
            self.operators.setdefault(key, _Operator()).add(time)
        return self

    def data(self) -> dict[str, Any]:
        entries = [
            _entry(key, operator.calls, operator.seconds, operator.typical_seconds(self._steps))
            for key, operator in self.operators.items()
        ]
        entries.sort(key=lambda entry: -entry["typical_seconds"])
        named, others = entries[:MAX_REPORTED], entries[MAX_REPORTED:]
        if others:
            sums = (sum(entry[name] for entry in others) for name in ("calls", "seconds", "typical_seconds"))
            named.append(_entry((OTHER, OTHER), *sums))
        return {
            "steps": self._steps,
            "seconds": self._seconds,
            "operator_seconds": sum(entry["seconds"] for entry in entries),
            "operators": named,
            "whole": self._is_complete,
        }


def _entry(key: Key, calls: int, seconds: float, typical_seconds: float) -> dict[str, Any]:
    op, dtype = key
    return {"op": op, "dtype": dtype, "calls": calls, "seconds": seconds, "typical_seconds": typical_seconds}
