"""Computes the changes of a run since a cursor.

Changes are the current state of the run and its incidents if they differ, and new events and steps. The server keeps no
client state; the cursor carries it. Any collector of the database can therefore continue a feed.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from ammeter.wire.decodable import decodable
from ammeter_server.api import events, incidents, runs
from ammeter_server.context import AppContext
from ammeter_server.curves import reader
from ammeter_server.curves.curve import CurveQuery
from ammeter_server.curves.encoding import Drawn, as_member
from ammeter_server.curves.late_values import late_curves
from ammeter_server.curves.run_axis import OWN, RunAxis, curves_on_axis
from ammeter_server.db import Row
from ammeter_server.db.queries import live as query
from ammeter_server.http.problems import Problem

MAX_STREAMS = 64
"""Maximum number of streams of the requested ranks, the newest ones: the cursor has to fit into a request header."""

MAX_EVENTS = 500
"""Maximum number of events in one message; the next message contains more."""

FIRST_EVENTS = 100
"""Number of events per stream in the first message, the newest ones."""


@dataclass(frozen=True)
class Wanted:
    """The requested content of a feed.

    Attributes:
        names: Series to send as they grow.
        ranks: None for the lowest rank of the run.
        points: Maximum number of points of one series in one message.
        axis: Whether steps are those of the run or of an attempt: `run` or `life`.
    """

    names: Sequence[str]
    ranks: Sequence[int] | None
    points: int
    axis: str = "run"


class StreamCursor(msgspec.Struct, array_like=True):
    """Position in one stream: the number of events sent, and the last step sent."""

    events: int
    last_step: int = -1


@decodable
class Cursor(msgspec.Struct, array_like=True):
    """State of a feed: hashes of the run and its incidents, positions in the streams."""

    run: bytes = b""
    incidents: bytes = b""
    streams: dict[bytes, StreamCursor] = {}

    def written(self) -> str:
        return base64.urlsafe_b64encode(msgspec.msgpack.encode(self)).decode().rstrip("=")


class Changes(msgspec.Struct):
    """One message of a feed.

    Attributes:
        run: The run; null if it is unchanged.
        incidents: Its incidents; null if they are unchanged.
        events: New events, the oldest first.
        series: New values, in the format of the series resource. A value that run.log gave to an earlier step is an
            item of its own and replaces the value there.
    """

    run: msgspec.Raw | None = None
    incidents: msgspec.Raw | None = None
    events: list[events.Event] = []
    series: msgspec.Raw | None = None

    def __bool__(self) -> bool:
        return bool(self.run or self.incidents or self.events or self.series)


def read_cursor(encoded: str | None) -> Cursor:
    """Decodes a cursor; an empty one for None.

    Raises:
        Problem: 422 if this server did not create the cursor.
    """
    if not encoded:
        return Cursor()
    try:
        return msgspec.msgpack.decode(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)), type=Cursor)
    except (ValueError, msgspec.DecodeError, RecursionError):
        raise Problem(
            422,
            f"Last-Event-ID is {encoded[:80]!r}, which this server did not send; omit it to receive the complete state",
        ) from None


def since(context: AppContext, run: str, wanted: Wanted, cursor: Cursor) -> tuple[Changes, Cursor]:
    """Returns the changes since the cursor, and the cursor after them."""
    with context.store.reading() as connection:
        streams = query.newest_streams(connection, run, wanted.ranks, MAX_STREAMS)
    description, incident_list = _run(context, run), _incidents(context, run)
    axis = context.axes.of(context.store, run)
    events_between, numbers, late = _events(context, run, streams, cursor, axis)
    grown = _series(context, run, streams, wanted, cursor, late, axis)
    reached = {
        _key(stream.id): StreamCursor(numbers[stream.id], -1 if stream.last_step is None else stream.last_step)
        for stream in streams
    }
    after = Cursor(_hash(description), _hash(incident_list), reached)
    changes = Changes(
        description if after.run != cursor.run else None,
        incident_list if after.incidents != cursor.incidents else None,
        events_between,
        grown,
    )
    return changes, after


def _run(context: AppContext, run: str) -> msgspec.Raw:
    return msgspec.Raw(bytes(runs.read_run(context, run).body))


def _incidents(context: AppContext, run: str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(incidents.list_incidents_of_run(context, run).items))


def _events(
    context: AppContext, run: str, streams: Sequence[Row[Any]], cursor: Cursor, axis: RunAxis
) -> tuple[list[events.Event], dict[str, int], dict[str, list[Row[Any]]]]:
    """Reads the events that were not sent.

    Returns:
        The events, the number of events sent per stream after them, and per stream those events that log values of
            steps that were already sent.
    """
    new_events: list[events.Event] = []
    numbers: dict[str, int] = {}
    late: dict[str, list[Row[Any]]] = {}
    with context.store.reading() as connection:
        for stream in streams:
            position = cursor.streams.get(_key(stream.id))
            first = position.events if position else max(0, stream.events - FIRST_EVENTS)
            remaining = MAX_EVENTS - len(new_events)
            rows = (
                query.events_between(connection, run, stream.id, first, stream.events, remaining)
                if first < stream.events
                else ()
            )
            new_events += [events.to_response(row, stream.rank, axis) for row in rows]
            reached = position.last_step if position else -1
            late[stream.id] = [row for row in rows if row.name == "values.logged" and row.step <= reached]
            if not remaining:
                numbers[stream.id] = first
            elif rows and len(rows) == remaining:
                numbers[stream.id] = rows[-1].number + 1
            else:
                numbers[stream.id] = stream.events
    return new_events, numbers, late


def _series(
    context: AppContext,
    run: str,
    streams: Sequence[Row[Any]],
    wanted: Wanted,
    cursor: Cursor,
    late: Mapping[str, Sequence[Row[Any]]],
    axis: RunAxis,
) -> msgspec.Raw | None:
    grown = []
    for stream in streams if wanted.names else ():
        place = axis.place(stream.id)
        where = place if wanted.axis == "run" else OWN
        if logged := late_curves(late[stream.id], wanted.names):
            grown.append(Drawn(stream.rank, stream.id, curves_on_axis(where, logged), place))
        position = cursor.streams.get(_key(stream.id), StreamCursor(0))
        if stream.last_step is not None and stream.last_step > position.last_step:
            curve_query = CurveQuery(wanted.names, wanted.points, position.last_step + 1, stream.last_step)
            read = reader.read(context.store, run, stream.id, curve_query)
            grown.append(Drawn(stream.rank, stream.id, curves_on_axis(where, read), place))
    return as_member(grown) if any(drawn.curves for drawn in grown) else None


def _key(stream: str) -> bytes:
    return blake2b(stream.encode(), digest_size=6).digest()


def _hash(content: msgspec.Raw) -> bytes:
    return blake2b(content, digest_size=6).digest()
