"""Detects a witness of a run on this host.

A witness is an `ammeter run` that waits for the run's writers to end, and learns how they ended.
"""

from __future__ import annotations

import os
from pathlib import Path

from ammeter.environment import identity
from ammeter.journal.process_lock import is_locked


def witness_path(run_folder: Path) -> Path:
    """Returns the file that this process keeps locked while it is a witness."""
    return run_folder / f"witness.{identity.host()}.{os.getpid()}"


def has_witness(run_folder: Path) -> bool:
    """Returns whether a process of this host waits for the writers of this run."""
    return any(is_locked(path) for path in run_folder.glob(f"witness.{identity.host()}.*"))
