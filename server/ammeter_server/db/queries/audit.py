"""Queries on the audit records, to which rows are only added."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, select, tuple_

from ammeter_server.db.tables import audit


def add(connection: Connection, now: int, actor: str, action: str, subject: str, detail: str = "") -> None:
    """Adds a record in the transaction of the action.

    Neither is committed without the other.
    """
    row = {"at": now, "id": uuid.uuid4().hex, "actor": actor, "action": action, "subject": subject, "detail": detail}
    connection.execute(audit.insert().values(row))


def newest(connection: Connection, limit: int, before: tuple[Any, ...] | None = None) -> Sequence[Row[Any]]:
    """Returns audit records, the newest first.

    before: (at, id) of the previous page's last record.
    """
    query = select(audit).order_by(audit.c.at.desc(), audit.c.id.desc()).limit(limit)
    if before is not None:
        query = query.where(tuple_(audit.c.at, audit.c.id) < tuple_(*before))
    return connection.execute(query).all()
