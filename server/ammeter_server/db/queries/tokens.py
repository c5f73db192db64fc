"""Queries on tokens and the page's sessions, by SHA-256. Their plain text is never stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, exists, or_, select

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.prepared import Prepared
from ammeter_server.db.tables import tokens

SCOPES = ("ingest", "read", "admin")
"""Permissions of a token. ingest: send frames. read: read, and handle incidents. admin: both, and read the audit
records."""

FROM_FILE = "token file"
"""The name of the token from the settings; a changed token file replaces it."""

SESSION_OF = "session of "
"""Prefix of the names of the page's sessions, before the name of the token that opened the session."""


_valid = or_(tokens.c.expires.is_(None), tokens.c.expires > bindparam("of_now"))
_find = select(tokens).where(tokens.c.sha256 == bindparam("of_sha256"), _valid)
_any = Prepared(select(exists(select(tokens.c.sha256))))
"""Built once, because every request needs one of them."""


def find(connection: Connection, sha256: str, now: int) -> Row[Any] | None:
    """Returns the token with this hash, unless it has expired."""
    return connection.execute(_find, {"of_sha256": sha256, "of_now": now}).one_or_none()


def any_exists(connection: Connection) -> bool:
    row = _any.one(connection, {})
    return row is not None and bool(row[0])


def all_of(connection: Connection) -> Sequence[Row[Any]]:
    """Returns tokens and sessions, oldest first."""
    return connection.execute(select(tokens).order_by(tokens.c.created, tokens.c.sha256)).all()


def named(connection: Connection, name: str) -> bool:
    return connection.execute(select(tokens.c.sha256).where(tokens.c.name == name).limit(1)).first() is not None


def add(
    connection: Connection,
    sha256: str,
    name: str,
    scopes: str,
    now: int,
    project: str | None = None,
    expires: int | None = None,
) -> None:
    connection.execute(
        tokens.insert().values(sha256=sha256, name=name, scopes=scopes, project=project, created=now, expires=expires)
    )


def remove(connection: Connection, sha256: str) -> None:
    connection.execute(delete(tokens).where(tokens.c.sha256 == sha256))


def remove_named(connection: Connection, name: str) -> None:
    """Deletes the token and the sessions that it opened."""
    connection.execute(delete(tokens).where(tokens.c.name.in_((name, SESSION_OF + name))))


def remove_expired_sessions(connection: Connection, now: int) -> None:
    """Deletes expired sessions, but no tokens.

    The deletion of its last token would open a collector to everyone.
    """
    sessions = tokens.c.name.startswith(SESSION_OF, autoescape=True)
    connection.execute(delete(tokens).where(tokens.c.expires <= now, sessions))


def keep_newest(connection: Connection, name: str, limit: int) -> None:
    """Deletes the rows with this name except for the newest `limit`."""
    of_name = select(tokens.c.sha256).where(tokens.c.name == name).order_by(tokens.c.created.desc(), tokens.c.sha256)
    older = connection.execute(of_name.offset(limit)).scalars().all()
    connection.execute(delete(tokens).where(tokens.c.sha256.in_(older)))


def replace_from_file(connection: Connection, sha256: str, scopes: str, now: int) -> bool:
    """Replaces the token of the token file. Returns whether it changed.

    The previous token and the sessions that it opened become invalid. Several collectors may do so at once.
    """
    known = connection.execute(select(tokens.c.sha256).where(tokens.c.name == FROM_FILE)).scalars().all()
    if list(known) == [sha256]:
        return False
    remove_named(connection, FROM_FILE)
    remove(connection, sha256)
    row = {"sha256": sha256, "name": FROM_FILE, "scopes": scopes, "created": now}
    connection.execute(insert_or_ignore(connection, tokens).values(row))
    return True
