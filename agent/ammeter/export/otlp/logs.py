"""The OpenTelemetry log records of a run: its events, and the findings of its verdicts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ammeter.recorded.recorded_run import RecordedRun, Stream, json_of
from ammeter.report.diagnosis import ReportedFinding
from ammeter.report.event_text import sentence
from ammeter.wire.frames import Event

SEVERITIES = {"page": "ERROR", "ticket": "WARN"}
"""Severity of a finding -> that of its log record."""

Record = dict[str, Any]
"""Arguments of a LogRecord: timestamp in ns, severity, event_name, body, attributes."""


def events_of(run: RecordedRun, stream: Stream) -> Iterator[Record]:
    """Yields the events of a stream that load() saw, in order."""
    return (_of_event(event, stream) for event in run.events(stream))


def finding_record(reported: ReportedFinding, time: int) -> Record:
    """Returns a finding with its facts. time: when its verdict was reached, in ns."""
    finding = reported.finding
    facts = {
        "verdict": finding.verdict,
        "severity": reported.severity,
        "rank": reported.rank,
        "ranks": reported.distinct_ranks,
        "first_step": finding.first_step,
        "opened_step": finding.opened_step,
        "last_step": finding.last_step,
        "tensor": finding.tensor,
        "module": finding.module,
        "caller": finding.caller,
        "fix": finding.fix,
        "evidence": json_of(finding.evidence),
        "consequences": [consequence.verdict for consequence in reported.consequences],
    }
    return {
        "timestamp": time,
        "severity": SEVERITIES[reported.severity],
        "event_name": "ammeter.finding",
        "body": f"{finding.title}. {finding.cause}" if finding.title else finding.cause,
        "attributes": {f"ammeter.{name}": fact for name, fact in facts.items() if fact is not None},
    }


def _of_event(event: Event, stream: Stream) -> Record:
    rank = {} if stream.rank is None else {"ammeter.rank": stream.rank}
    return {
        "timestamp": event.time,
        "severity": "INFO",
        "event_name": f"ammeter.{event.name}",
        "body": sentence(event) or event.name,
        "attributes": {"ammeter.step": event.step, **rank, "ammeter.data": json_of(event.data)},
    }
