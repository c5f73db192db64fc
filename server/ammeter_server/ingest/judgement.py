"""Runs the verdicts over new rows of a stream, and advances its counters and latest values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.counters import stream as stream_counters
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire import columns
from ammeter.wire.printable import storable
from ammeter_server.db.queries.streams import StreamState
from ammeter_server.runs.latest_values import latest


@dataclass(frozen=True)
class Judgement:
    """The result of new rows and events for their stream.

    Attributes:
        columns: The new values of the stream's columns that depend on rows.
        findings: New findings by verdict.
        failed: Verdicts that failed.
    """

    columns: Mapping[str, Any]
    findings: Mapping[str, Finding] = field(default_factory=dict)
    failed: Sequence[str] = ()


def judge_views(
    state: StreamState,
    views: Sequence[columns.View],
    decoded: dict[str, tuple[bytes, Any]] | None = None,
    role: str | None = None,
) -> Judgement:
    """Judges the rows and events that follow those which the stream's state includes.

    Args:
        state: The stream's row.
        views: In order; without any that the state already includes.
        decoded: Verdict -> (its packed state, the decoded state): a cache, which this call updates.
        role: The stream's role if a hello has just changed it. Only ranks have verdicts.
    """
    states = msgspec.msgpack.decode(state.states, type=dict[str, bytes])
    findings, faults, failed = dict[str, Finding](), state.faults, list[str]()
    for view in views if (role or state.role) == "rank" else ():
        judged = verdicts.judge(states, view, decoded)
        states = judged.states
        findings |= {finding.verdict: finding for finding in judged.findings}
        faults = {**faults, **judged.faults} if judged.faults else faults
        failed += judged.faults
    counters, values, precision = state.counters, state.latest, state.precision
    for view in [view for view in views if view.tick is None]:
        counters = stream_counters.advance(counters, view)
        values = latest(values, view)
        precision = stream_counters.precision(precision, view)
    return Judgement(
        columns={
            "states": msgspec.msgpack.encode(states),
            "faults": faults,
            "counters": stream_counters.add_reached(counters, findings),
            "latest": values,
            "precision": precision if precision is state.precision else storable(precision or ""),
            "postponed_from": None,
        },
        findings=findings,
        failed=failed,
    )
