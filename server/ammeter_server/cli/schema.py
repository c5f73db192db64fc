"""`ammeter-server migrate`, and the check of the database's schema before every other command."""

from __future__ import annotations

import json
import sys
from typing import TextIO

from ammeter_server.config.settings import Settings
from ammeter_server.db import (
    DatabaseError,
    Store,
    StoreAwayError,
    connect,
    migrations,
    permissions,
    reason_of,
)
from ammeter_server.db.engine import database_file, without_password


class SchemaError(Exception):
    """The schema of the database does not allow the command; the message has the remedy."""


def migrate(database_url: str, target: str | None, *, confirmed: bool, as_json: bool = False) -> None:
    """Migrates the database to the newest schema, or back to an earlier one.

    Args:
        target: The earlier schema; None for the newest.
        confirmed: Whether the user accepts the loss of data on the way back.
        as_json: Whether to print the outcome as JSON.
    """
    store = connect(database_url)
    try:
        before = version(store)
        if target is None:
            migrations.migrate(store)
        else:
            _go_back(store, before, target, confirmed, sys.stderr if as_json else sys.stdout)
        current = migrations.current(store)
        text = f"the database has schema {current} (before: {before})"
        print(json.dumps({"schema": current, "before": before}) if as_json else text)
    finally:
        store.close()


def prepare(settings: Settings, *, for_collector: bool = False) -> None:
    """Migrates SQLite; requires the newest schema in any other database.

    Args:
        for_collector: Also checks that the database grants all permissions that a collector needs.
    """
    store = connect(settings.database_url)
    try:
        current = version(store)
        if store.is_sqlite:
            migrations.migrate(store)
        elif current != migrations.newest():
            newest = migrations.newest()
            raise SchemaError(f"the database has schema {current}, not {newest}; run `ammeter-server migrate`")
        if for_collector:
            permissions.check(store)
    finally:
        store.close()


def version(store: Store) -> str | None:
    """The schema version of the database, None if it is empty.

    Raises:
        SchemaError: The schema belongs to a newer version of Ammeter.
    """
    current = migrations.current(store)
    if current is not None and not migrations.is_known(current):
        raise SchemaError(migrations.unknown_version_error(current))
    return current


def explain(error: Exception, url: str) -> str:
    """Explains why a command cannot use this database."""
    setting = f"AMMETER_SERVER_DATABASE_URL is {without_password(url)!r}"
    if isinstance(error, DatabaseError):
        reason = f"the database refuses the command ({reason_of(error)}); check that it is a database of the collector"
    elif type(error) is StoreAwayError:
        remedy = "check its disk and its other users" if database_file(url) else "start it, or correct the URL"
        reason = f"the database does not answer ({error.reason or error}); {remedy}"
    else:
        reason = str(error)
    return f"{setting}: {reason}"


def _go_back(store: Store, before: str | None, target: str, confirmed: bool, output: TextIO) -> None:
    """Prints the data that is lost, and migrates back if the user has confirmed it."""
    try:
        lost = migrations.downgrade_losses(before, target)
    except ValueError as error:
        raise SchemaError(f"--back-to is {target!r}: {error}") from error
    print(f"the downgrade from schema {before} to {target} loses:", *lost, sep="\n  ", file=output)
    if not confirmed:
        raise SchemaError(
            "nothing was changed. Stop every collector of this database, make a backup, and repeat the command with "
            "--yes; then start the older version: this version migrates SQLite to its own schema again"
        )
    migrations.downgrade(store, target)
