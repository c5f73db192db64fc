"""What the verdicts find in a stream: its frames as views, and the findings over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.wire.columns import Tick, View, view
from ammeter.wire.frames import Bye, Event, Frame, Hello, Lost, Schema, Steps
from tests.agent.stream_builder import Stream


def views(frames: Iterable[Frame], cuts: Iterable[int] = (), schema: Schema | None = None) -> list[View]:
    """The frames as views, cut before the frames with these indices and wherever the schema changes."""
    wanted, found = set(cuts), []
    rows: list[Steps] = []
    others: list[tuple[int, Hello | Event | Lost | Bye]] = []
    schema = schema or Schema()
    for index, frame in enumerate(frames):
        changes = isinstance(frame, Hello) and frame.schema != schema
        if (index in wanted or changes) and (rows or others):
            found.append(view(schema, rows, others))
            rows, others = [], []
        if isinstance(frame, Hello):
            schema = frame.schema
        if isinstance(frame, Steps):
            rows.append(frame)
        else:
            others.append((len(rows), frame))
    return [*found, view(schema, rows, others)]


@cache
def whole(make: Callable[[], Stream]) -> tuple[View, ...]:
    """The views of a stream without cuts, made once; a verdict changes no view."""
    return tuple(views(make().frames))


def judged(
    stream: Stream, cuts: Iterable[int] = (), tick: Tick | None = None
) -> tuple[dict[str, bytes], dict[str, Finding]]:
    """What all verdicts come to over a stream: their last states and their last findings by id."""
    states: dict[str, bytes] = {}
    findings: dict[str, Finding] = {}
    ticks = [view(stream.schema, (), tick=tick)] if tick else []
    for entry in (*views(stream.frames, cuts), *ticks):
        answer = verdicts.judge(states, entry)
        assert {} == answer.faults
        states = answer.states
        findings |= {finding.verdict: finding for finding in answer.findings}
    return states, findings


def findings(stream: Stream, tick: Tick | None = None) -> dict[str, Finding]:
    return judged(stream, tick=tick)[1]
