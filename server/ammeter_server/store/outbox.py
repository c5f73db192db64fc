"""Queries behind telling people: rows written with the incident, taken one by one by a conditional UPDATE."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, Row, and_, exists, func, select, update

from ammeter_server.tables import outbox


def add(
    connection: Connection,
    run: str,
    incident: str,
    kind: str,
    channels: Iterable[str],
    message: Mapping[str, Any],
    now: int,
) -> None:
    """One row per channel. due: at once."""
    for channel in channels:
        row = {"run": run, "id": uuid.uuid4().hex, "incident": incident, "kind": kind, "channel": channel}
        connection.execute(outbox.insert().values(**row, message=dict(message), created=now, due=now))


def due(connection: Connection, now: int, limit: int = 100) -> list[Row[Any]]:
    """Pending rows whose time has come and that nobody is delivering, oldest first.

    What was said earlier about the same incident goes first on its channel, so nobody hears "resolved" before
    "opened".
    """
    earlier = outbox.alias("earlier")
    waits = exists().where(
        and_(
            earlier.c.run == outbox.c.run,
            earlier.c.incident == outbox.c.incident,
            earlier.c.channel == outbox.c.channel,
            earlier.c.state == "pending",
            earlier.c.created < outbox.c.created,
        )
    )
    query = (
        select(outbox)
        .where(outbox.c.state == "pending", outbox.c.due <= now, outbox.c.claimed_until < now, ~waits)
        .order_by(outbox.c.created)
        .limit(limit)
    )
    return list(connection.execute(query))


def claim(connection: Connection, run: str, row_id: str, now: int, until: int) -> bool:
    """Whether this process delivers the row now."""
    free = and_(outbox.c.run == run, outbox.c.id == row_id, outbox.c.state == "pending", outbox.c.claimed_until < now)
    taken = connection.execute(update(outbox).where(free).values(claimed_until=until, attempts=outbox.c.attempts + 1))
    return taken.rowcount == 1


def settle(connection: Connection, run: str, row_id: str, values: Mapping[str, Any]) -> None:
    """Writes how a delivery went."""
    mine = and_(outbox.c.run == run, outbox.c.id == row_id)
    connection.execute(update(outbox).where(mine).values(claimed_until=0, **values))


def pending(connection: Connection) -> int:
    """Notifications that are still to be delivered."""
    return connection.execute(select(func.count()).where(outbox.c.state == "pending")).scalar_one()
