"""Tokens and the page's sessions: looked up by their SHA-256, never kept in the clear."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, delete, func, or_, select

from ammeter_server.tables import tokens

SCOPES = ("ingest", "read", "admin")
"""What a token may: send frames, look and handle incidents, both."""

FROM_FILE = "token file"
"""The name of the token that the settings brought; a changed file replaces it."""


def find(connection: Connection, sha256: str, now: int) -> Row[Any] | None:
    """The token with this hash, unless it has expired."""
    valid = or_(tokens.c.expires.is_(None), tokens.c.expires > now)
    return connection.execute(select(tokens).where(tokens.c.sha256 == sha256, valid)).one_or_none()


def any_exists(connection: Connection) -> bool:
    return connection.execute(select(tokens.c.sha256).limit(1)).first() is not None


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


def remove_expired(connection: Connection, now: int) -> None:
    connection.execute(delete(tokens).where(tokens.c.expires <= now))


def replace_from_file(connection: Connection, sha256: str, scopes: str, now: int) -> None:
    """Makes this the one token of the token file; the one before it is no longer valid."""
    connection.execute(delete(tokens).where(tokens.c.name == FROM_FILE, tokens.c.sha256 != sha256))
    known = connection.execute(select(func.count()).where(tokens.c.sha256 == sha256)).scalar_one()
    if not known:
        add(connection, sha256, FROM_FILE, scopes, now)
