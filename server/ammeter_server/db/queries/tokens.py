"""Tokens and the page's sessions: looked up by their SHA-256, never kept in the clear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, or_, select

from ammeter_server.db.tables import tokens

SCOPES = ("ingest", "read", "admin")
"""What a token may: send frames, look and handle incidents, both and see what people did."""

FROM_FILE = "token file"
"""The name of the token that the settings brought; a changed file replaces it."""

SESSION_OF = "session of "
"""What the names of the page's sessions begin with; the name of the token that opened it follows."""


def find(connection: Connection, sha256: str, now: int) -> Row[Any] | None:
    """The token with this hash, unless it has expired."""
    valid = or_(tokens.c.expires.is_(None), tokens.c.expires > now)
    return connection.execute(select(tokens).where(tokens.c.sha256 == sha256, valid)).one_or_none()


def any_exists(connection: Connection) -> bool:
    return connection.execute(select(tokens.c.sha256).limit(1)).first() is not None


def all_of(connection: Connection) -> Sequence[Row[Any]]:
    """Tokens and sessions, oldest first."""
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
    """The token and the sessions that it opened."""
    connection.execute(delete(tokens).where(tokens.c.name.in_((name, SESSION_OF + name))))


def remove_expired_sessions(connection: Connection, now: int) -> None:
    """Tokens that have expired stay: their going would open a collector that has no other."""
    sessions = tokens.c.name.startswith(SESSION_OF, autoescape=True)
    connection.execute(delete(tokens).where(tokens.c.expires <= now, sessions))


def keep_newest(connection: Connection, name: str, most: int) -> None:
    """Of the rows with this name those made last; the others are no longer valid."""
    mine = select(tokens.c.sha256).where(tokens.c.name == name).order_by(tokens.c.created.desc(), tokens.c.sha256)
    older = connection.execute(mine.offset(most)).scalars().all()
    connection.execute(delete(tokens).where(tokens.c.sha256.in_(older)))


def replace_from_file(connection: Connection, sha256: str, scopes: str, now: int) -> bool:
    """Makes this the one token of the token file, and whether it is another than before.

    The one before it and the sessions that it opened are no longer valid.
    """
    known = connection.execute(select(tokens.c.sha256).where(tokens.c.name == FROM_FILE)).scalars().all()
    if list(known) == [sha256]:
        return False
    remove_named(connection, FROM_FILE)
    remove(connection, sha256)
    add(connection, sha256, FROM_FILE, scopes, now)
    return True
