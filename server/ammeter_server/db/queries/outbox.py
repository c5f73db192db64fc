"""Queries on notifications, one row per channel.

Rows are written with the incident and claimed singly by a conditional UPDATE.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, func, or_, select, update

from ammeter_server.db.prepared import PreparedRow
from ammeter_server.db.tables import incidents, outbox, runs

LIVE = ("pending", "told")

NEW = {"state": "pending", "attempts": 0, "error": None, "claimed_until": 0, "sent": None}
"""Values of a row before its first delivery."""

_row = PreparedRow(outbox)
_of_incident = and_(
    outbox.c.run == bindparam("of_run"),
    outbox.c.incident == bindparam("of_incident"),
    outbox.c.channel == bindparam("of_channel"),
)
_of = select(outbox).where(_of_incident).order_by(outbox.c.created, outbox.c.id)
_live = _of.where(outbox.c.state.in_(LIVE)).with_for_update()
_seen = and_(
    outbox.c.run == bindparam("of_run"),
    outbox.c.id == bindparam("of_id"),
    outbox.c.kind == bindparam("of_kind"),
    outbox.c.created == bindparam("of_created"),
)
_earlier = outbox.alias("earlier")
_waits = exists().where(
    and_(
        _earlier.c.run == outbox.c.run,
        _earlier.c.incident == outbox.c.incident,
        _earlier.c.channel == outbox.c.channel,
        _earlier.c.state == "pending",
        _earlier.c.created < outbox.c.created,
    )
)
_is_free = and_(outbox.c.due <= bindparam("of_now"), outbox.c.claimed_until < bindparam("of_now"))
_due = (
    select(outbox)
    .where(outbox.c.state.in_(LIVE), _is_free, ~_waits)
    .where(outbox.c.channel.not_in(bindparam("of_channels", expanding=True)))
    .order_by(outbox.c.created, outbox.c.id)
    .limit(bindparam("of_limit"))
)
_claim = (
    update(outbox)
    .where(_seen, outbox.c.state.in_(LIVE), outbox.c.claimed_until < bindparam("of_now"))
    .values(claimed_until=bindparam("to_until"), attempts=outbox.c.attempts + 1)
)


def add(
    connection: Connection, run: str, incident: str, channel: str, message: Mapping[str, Any], now: int, due: int
) -> None:
    """Adds a message for one channel. message: its `kind` is the kind of the row."""
    row = {"run": run, "id": uuid.uuid4().hex, "incident": incident, "kind": message["kind"], "channel": channel}
    _row.put(connection, {**NEW, **row, "message": dict(message), "created": now, "due": due})


def due(connection: Connection, now: int, without: Collection[str] = (), limit: int = 500) -> list[Row[Any]]:
    """Returns due rows that no process is delivering, oldest first.

    A row waits for earlier pending messages about the same incident on its channel, so that "resolved" never arrives
    before "opened".

    Args:
        connection: The database.
        now: In ns.
        without: Channels to leave out, which may wait.
        limit: Most rows.
    """
    values = {"of_now": now, "of_channels": list(without), "of_limit": limit}
    return list(connection.execute(_due, values))


def claim(connection: Connection, row: Row[Any], now: int, until: int) -> bool:
    """Claims the row for delivery by this process. Returns whether that succeeded."""
    return connection.execute(_claim, {**_as_seen(row), "of_now": now, "to_until": until}).rowcount == 1


def settle(connection: Connection, row: Row[Any], values: Mapping[str, Any]) -> None:
    """Stores the result of a delivery.

    If the row has got another message in the meantime, that message becomes due at once.
    """
    settled = connection.execute(update(outbox).where(_seen).values(claimed_until=0, **values), _as_seen(row))
    if not settled.rowcount:
        values = {"state": "pending", "due": row.due, "claimed_until": 0}
        connection.execute(update(outbox).where(_key(row), outbox.c.state.in_(LIVE)).values(**values))


def of(connection: Connection, run: str, incident: str, channel: str) -> list[Row[Any]]:
    """Returns the messages about an incident on a channel, sent and pending, in order."""
    return list(connection.execute(_of, {"of_run": run, "of_incident": incident, "of_channel": channel}))


def live(connection: Connection, run: str, incident: str, channel: str) -> list[Row[Any]]:
    """Returns an incident's pending and repeated messages on a channel.

    They are locked until the transaction ends.
    """
    return list(connection.execute(_live, {"of_run": run, "of_incident": incident, "of_channel": channel}))


def change(connection: Connection, row: Row[Any], **values: Any) -> None:
    connection.execute(update(outbox).where(_key(row)).values(**values))


def drop(connection: Connection, row: Row[Any]) -> None:
    connection.execute(delete(outbox).where(_key(row)))


def transfer(connection: Connection, run: str, incident: str, successor: str, channel: str) -> None:
    """Transfers the firing alerts of an incident to another incident of its run."""
    firing = and_(outbox.c.state.in_(LIVE), outbox.c.kind == "opened", outbox.c.channel == channel)
    of_incident = and_(outbox.c.run == run, outbox.c.incident == incident)
    connection.execute(update(outbox).where(of_incident, firing).values(incident=successor))


def deliveries(connection: Connection, run: str, incident: str) -> list[Row[Any]]:
    """Returns the notifications of an incident on all channels, oldest first."""
    of_incident = and_(outbox.c.run == run, outbox.c.incident == incident)
    return list(connection.execute(select(outbox).where(of_incident).order_by(outbox.c.created, outbox.c.id)))


def newest_of_channel(connection: Connection, channel: str, limit: int, project: str | None = None) -> list[Row[Any]]:
    """Returns the newest notifications of a channel with title and run of their incidents, newest first."""
    of_incident = and_(incidents.c.run == outbox.c.run, incidents.c.id == outbox.c.incident)
    named = (
        incidents.c.title,
        incidents.c.severity,
        incidents.c.verdict,
        incidents.c.stream,
        runs.c.name.label("run_name"),
    )
    columns = tuple(column for column in outbox.c if column.name != "message")
    query = select(*columns, *named).join(incidents, of_incident).join(runs, runs.c.id == outbox.c.run)
    query = query.where(outbox.c.channel == channel)
    if project is not None:
        query = query.where(runs.c.project == project)
    return list(connection.execute(query.order_by(outbox.c.created.desc(), outbox.c.id).limit(limit)))


def pending(connection: Connection) -> int:
    """Counts undelivered notifications: those that are due, and those whose delivery has failed."""
    tried = outbox.c.error.is_not(None)
    waiting = or_(
        and_(outbox.c.state == "pending", or_(outbox.c.due <= time.time_ns(), tried)),
        and_(outbox.c.state == "told", tried),
    )
    return connection.execute(select(func.count()).where(waiting)).scalar_one()


def _key(row: Row[Any]) -> Any:
    return and_(outbox.c.run == row.run, outbox.c.id == row.id)


def _as_seen(row: Row[Any]) -> dict[str, Any]:
    """Returns the parameters of _seen. It matches while the row's message is the same."""
    return {"of_run": row.run, "of_id": row.id, "of_kind": row.kind, "of_created": row.created}
