"""Sends a run to an OTLP receiver: signals as metrics, events and findings as logs, each process as a span."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from ammeter.export.otlp.logs import Record, events_of, finding_record
from ammeter.export.otlp.sender import Sender
from ammeter.export.written import Written
from ammeter.recorded.recorded_run import Section, Stream
from ammeter.report.diagnosis import ReportedFinding, diagnose


def write(written: Written) -> None:
    """Sends the metrics of each stream, then its events, then the findings of the run."""
    run = written.run
    with closing(Sender(written.target)) as sender:
        findings = diagnose(run.path).findings
        times = _Times(findings)
        for stream in run.streams:
            for section in written.read(stream):
                sender.add(section, run.signals.values())
                times.add(section)
            sender.flush(stream)
            sender.send(events_of(run, stream), stream)
            if stream.rank is not None:
                sender.trace(stream, times.last_of(stream))
        sender.send(times.records(), run.streams[0])
    written.details = {"points": sender.points, "logs": sender.logs, "findings": len(findings)}


class _Times:
    """Looks up when the verdict of each finding was reached, while the rows pass by."""

    def __init__(self, findings: list[ReportedFinding]) -> None:
        self._findings = findings
        self._times = [0] * len(findings)
        self._last = 0
        self._last_of: dict[str, int] = {}

    def add(self, section: Section) -> None:
        last = self._last_of[section.stream.hello.stream] = int(section.times[-1])
        self._last = max(self._last, last)
        for index, reported in enumerate(self._findings):
            if reported.rank == section.stream.rank:
                rows = (section.steps == reported.finding.opened_step).nonzero()[0]
                if len(rows):
                    self._times[index] = int(section.times[rows[-1]])

    def last_of(self, stream: Stream) -> int:
        """Returns the time of the last row of a stream."""
        return self._last_of[stream.hello.stream]

    def records(self) -> Iterator[Record]:
        """Yields the findings. One whose step has no row has the time of the last row."""
        for reported, time in zip(self._findings, self._times, strict=True):
            yield finding_record(reported, time or self._last)
