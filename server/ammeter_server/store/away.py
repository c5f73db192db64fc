"""Why the database could not do what it was asked to, where that is nobody's mistake: it is full, or it is away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoneFreeError

DatabaseError = DBAPIError
"""What the database says within a transaction, which is over then. Outside of it, it has been told apart."""


class StoreFullError(RuntimeError):
    """The database could not take what had to be written: its disk is full."""


class StoreAwayError(RuntimeError):
    """The database does not answer. Whether it did what it was asked to is not known; asking again is right."""


NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
"""The last: the index of SQLite's log, which grows beside it."""

NOT_NOW = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
"""Codes of SQLite without what they add: somebody else writes for longer than is waited, or the disk fails."""

DISK_FULL = "53100"

GONE = ("08", "53", "57P", "58030", "25006")
"""How PostgreSQL's codes begin where a connection broke, it is short of something, it starts or ends, its disk fails,
or it is the copy that takes no writes."""


@contextmanager
def told_apart() -> Iterator[None]:
    """Raises StoreFullError and StoreAwayError for what the driver says of them; anything else as it comes."""
    try:
        yield
    except NoneFreeError as error:
        raise StoreAwayError("all connections to the database are taken; ask again") from error
    except (DBAPIError, sqlite3.Error) as error:  # a few statements go to the driver itself
        if _is_full(error):
            said = "the database's disk is full; free space: senders try again by themselves"
            raise StoreFullError(said) from error
        if _is_away(error):
            said = "the database does not answer; start it, or see its log: senders try again by themselves"
            raise StoreAwayError(said) from error
        raise


def _is_full(error: DBAPIError | sqlite3.Error) -> bool:
    return _code(error) in NO_ROOM or _state(error) == DISK_FULL


def _is_away(error: DBAPIError | sqlite3.Error) -> bool:
    code, state = _code(error), _state(error)
    if code is not None:
        return code & 0xFF in NOT_NOW
    if state is None and isinstance(error, DBAPIError):  # the driver says so, not the server: there is none
        return error.connection_invalidated or isinstance(error, OperationalError)
    return state is not None and state.startswith(GONE)


def _code(error: DBAPIError | sqlite3.Error) -> int | None:
    """SQLite's, with what it adds."""
    found: int | None = getattr(_original(error), "sqlite_errorcode", None)
    return found


def _state(error: DBAPIError | sqlite3.Error) -> str | None:
    """PostgreSQL's."""
    found: str | None = getattr(_original(error), "sqlstate", None)
    return found


def _original(error: DBAPIError | sqlite3.Error) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error
