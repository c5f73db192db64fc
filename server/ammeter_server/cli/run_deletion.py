"""`ammeter-server run delete`: deletes a run with all its rows."""

from __future__ import annotations

import argparse
import time

from ammeter_server.cli.tokens import who
from ammeter_server.db import Store, run_deletion


class NoRunError(Exception):
    """The database has no run with this id."""


def delete(store: Store, asked: argparse.Namespace) -> None:
    """Deletes one run, and compacts the file of SQLite."""
    if not run_deletion.delete(store, asked.run, who(), time.time_ns()):
        raise NoRunError(f"there is no run {asked.run[:80]!r}; give the id that its page has under Settings of the run")
    run_deletion.compact(store)
    print(f"run {asked.run} is deleted")
    if not store.is_sqlite:
        print("PostgreSQL keeps deleted rows in its files until VACUUM FULL has been there, and in its log and backups")
