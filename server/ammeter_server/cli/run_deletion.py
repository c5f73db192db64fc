"""`ammeter-server run delete`: deletes a run with all its rows."""

from __future__ import annotations

import argparse
import json
import time

from ammeter_server.cli.tokens import user
from ammeter_server.db import Store, run_deletion


class NoRunError(Exception):
    """The database has no run with this id."""


def delete(store: Store, arguments: argparse.Namespace) -> None:
    """Deletes one run, and compacts the file of SQLite."""
    if not run_deletion.delete(store, arguments.run, user(), time.time_ns()):
        raise NoRunError(f"there is no run {arguments.run[:80]!r}; use the id in the address of its page")
    run_deletion.compact(store)
    if arguments.json:
        print(json.dumps({"run": arguments.run, "deleted": True}))
        return
    print(f"run {arguments.run} is deleted")
    if not store.is_sqlite:
        print("PostgreSQL keeps deleted rows in its files until VACUUM FULL, and in its log and backups")
