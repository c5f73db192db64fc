"""Queries behind the record of what people did: it grows and is read, and nothing in it is changed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, tuple_

from ammeter_server.db.tables import audit


def add(connection: Connection, now: int, who: str, action: str, subject: str, detail: str = "") -> None:
    """Notes it in the transaction that does it, so that neither is there without the other."""
    row = {"at": now, "id": uuid.uuid4().hex, "who": who, "action": action, "subject": subject, "detail": detail}
    connection.execute(audit.insert().values(row))


def newest(connection: Connection, limit: int, before: tuple[Any, ...] | None = None) -> Sequence[Row[Any]]:
    """What was done, the last first. before: (at, id) of the last one already seen."""
    query = select(audit).order_by(audit.c.at.desc(), audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(audit.c.at, audit.c.id) < tuple_(*before))
    return connection.execute(query).all()
