"""Shows whether an exit watcher of a run is alive on this host.

The exit watcher is a thread of `ammeter run`. It waits for the run's writers to end, and learns how they ended.
"""

from __future__ import annotations

import os
from pathlib import Path

from ammeter.environment import identity
from ammeter.journal.process_lock import is_locked


def exit_watcher_path(run_folder: Path) -> Path:
    """Returns the file that the exit watcher of this process keeps locked."""
    return run_folder / f"witness.{identity.host()}.{os.getpid()}"


def has_exit_watcher(run_folder: Path) -> bool:
    """Returns whether an exit watcher of this host waits for the writers of this run."""
    return any(is_locked(path) for path in run_folder.glob(f"witness.{identity.host()}.*"))
