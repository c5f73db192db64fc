"""Errors of the database that are no programming errors of the collector.

The database is full, unreachable, read-only for this user, or damaged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.exc import TimeoutError as NoneFreeError

DatabaseError = DBAPIError
"""An error of the database inside a transaction, which it ends. translate_db_errors() converts it at the transaction's
end."""


class StoreFullError(RuntimeError):
    """A write failed because the database's disk is full."""


class StoreAwayError(RuntimeError):
    """The database does not answer; retry.

    Whether it executed the statement is unknown.

    Attributes:
        reason: The driver's message. It may contain names of hosts and users, so only operators of the collector see
            it.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class StoreRefusingError(StoreAwayError):
    """The database denies writes or all access; an operator has to act.

    It is read-only, or a privilege is missing.
    """


class StoreBrokenError(StoreAwayError):
    """The stored data is damaged. An operator has to restore a backup."""


DISK_FULL_CODES = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)
"""SQLITE_IOERR_SHMSIZE: SQLite could not extend the index of its write-ahead log, a file beside it."""

UNAVAILABLE_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_IOERR)
"""Primary result codes of SQLite: another writer exceeded the busy timeout, or the disk fails."""

DENIED_CODES = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH)
DAMAGE_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
EXTENDED_DAMAGE_CODES = (sqlite3.SQLITE_IOERR_SHORT_READ, sqlite3.SQLITE_IOERR_CORRUPTFS)
"""A page of the file is missing, or the file system reports damage itself."""

DECODE_ERROR_PREFIX = "Could not decode to UTF-8"
"""Beginning of Python's error, which has no SQLite code, for stored text that is not UTF-8."""

DISK_FULL_STATE = "53100"

UNAVAILABLE_STATES = ("08", "53", "57P", "58030")
"""Prefixes of PostgreSQL's codes: a connection broke, resources are short, the server starts or stops, or its disk
fails."""

READ_ONLY_STATE = "25006"
DENIED_STATES = ("42501", "28", "3D000")
"""A privilege is missing, authentication failed, or the database does not exist."""

DAMAGE_STATES = ("XX001", "XX002")
"""A damaged page of a table, or of an index."""


@contextmanager
def translate_db_errors() -> Iterator[None]:
    """Raises StoreFullError or StoreAwayError in place of the driver's errors they describe.

    Other errors pass unchanged.
    """
    try:
        yield
    except NoneFreeError as error:
        raise StoreAwayError("all connections to the database are in use; retry later") from error
    except (DBAPIError, sqlite3.Error) as error:  # a few statements bypass SQLAlchemy
        kind = _kind(error)
        if kind is None:
            raise
        raise kind from error


def _kind(error: DBAPIError | sqlite3.Error) -> StoreFullError | StoreAwayError | None:
    """Returns the error to raise instead; None for programming errors of the collector."""
    reason = reason_of(error)
    if _is_full(error):
        return StoreFullError("the database's disk is full; free space. Senders retry by themselves")
    if _code(error) == sqlite3.SQLITE_NOTADB:
        message = (
            f"the file is damaged or is not a database ({reason}); name the collector's own file, or restore a backup"
        )
        return StoreBrokenError(message, reason)
    if _is_broken(error):
        return StoreBrokenError(
            f"the database is damaged ({reason}); stop its collectors and restore a backup. Senders keep data "
            "that is not stored, and retry by themselves",
            reason,
        )
    if _is_refusing(error):
        return StoreRefusingError(_refusal(error, reason), reason)
    if _is_away(error):
        message = "the database does not respond; start it, or see its log. Senders retry by themselves"
        return StoreAwayError(message, reason)
    return None


def reason_of(error: DBAPIError | sqlite3.Error) -> str:
    """Returns the driver's message on one line, at most 500 characters, without the statement."""
    return " ".join(str(_original(error)).split())[:500]


def _refusal(error: DBAPIError | sqlite3.Error, reason: str) -> str:
    code = _code(error)
    if code is not None and code & 0xFF == sqlite3.SQLITE_CANTOPEN:
        return (
            f"the database cannot be opened ({reason}); name a file that this user may read and write, in such a folder"
        )
    if code is not None:
        return f"the database is read-only ({reason}); grant this user write access to its file and folder"
    if _state(error) == READ_ONLY_STATE:
        return f"the database is read-only ({reason}); name the primary server, or allow writes again"
    return f"the database denies access ({reason}); grant the privilege, or name another user"


def _is_full(error: DBAPIError | sqlite3.Error) -> bool:
    return _code(error) in DISK_FULL_CODES or _state(error) == DISK_FULL_STATE


def _is_broken(error: DBAPIError | sqlite3.Error) -> bool:
    code, original = _code(error), _original(error)
    if code is None and isinstance(original, sqlite3.Error):
        return str(original).startswith(DECODE_ERROR_PREFIX)
    return (code is not None and (code & 0xFF in DAMAGE_CODES or code in EXTENDED_DAMAGE_CODES)) or _state(
        error
    ) in DAMAGE_STATES


def _is_refusing(error: DBAPIError | sqlite3.Error) -> bool:
    code, state = _code(error), _state(error)
    if code is not None:
        return code & 0xFF in DENIED_CODES
    return state is not None and (state == READ_ONLY_STATE or state.startswith(DENIED_STATES))


def _is_away(error: DBAPIError | sqlite3.Error) -> bool:
    code, state = _code(error), _state(error)
    if code is not None:
        return code & 0xFF in UNAVAILABLE_CODES
    if state is None and isinstance(error, DBAPIError):  # an error of the driver: no server answered
        return error.connection_invalidated or isinstance(error, OperationalError)
    return state is not None and state.startswith(UNAVAILABLE_STATES)


def _code(error: DBAPIError | sqlite3.Error) -> int | None:
    """Returns SQLite's extended result code."""
    code: int | None = getattr(_original(error), "sqlite_errorcode", None)
    return code


def _state(error: DBAPIError | sqlite3.Error) -> str | None:
    """Returns PostgreSQL's SQLSTATE."""
    state: str | None = getattr(_original(error), "sqlstate", None)
    return state


def _original(error: DBAPIError | sqlite3.Error) -> BaseException | None:
    return error.orig if isinstance(error, DBAPIError) else error
