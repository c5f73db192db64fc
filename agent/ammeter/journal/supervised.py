"""Whether somebody on this host waits for the writers of a run to end, and will know how: `ammeter run`."""

from __future__ import annotations

import os
from pathlib import Path

from ammeter.environment import identity
from ammeter.journal.process_lock import is_locked


def witness_path(run_folder: Path) -> Path:
    """The file that a witness keeps locked while it waits: this process's own."""
    return run_folder / f"witness.{identity.host()}.{os.getpid()}"


def has_witness(run_folder: Path) -> bool:
    """Whether a process of this host waits for the writers of this run."""
    return any(is_locked(path) for path in run_folder.glob(f"witness.{identity.host()}.*"))
