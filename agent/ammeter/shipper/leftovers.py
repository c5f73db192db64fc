"""Recovers journals that earlier runs of this user left on tmpfs.

They remain there if the shipper or mirror was killed before it could move them to disk.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from ammeter import journal
from ammeter.environment import identity
from ammeter.shipper.disk_cap import Keeper

FORGOTTEN_SECONDS = 7 * 86_400
"""Data on tmpfs without a visible journal is deleted after this time. Earlier, it may belong to another container."""


def bring_stragglers(run_folder: Path) -> None:
    """Moves orphaned segments on tmpfs to their streams' folders.

    Segments without a folder are deleted after FORGOTTEN_SECONDS. Only the tmpfs folders beside those of this run's
    streams are searched.
    """
    roots = {hot.parent.parent for each in journal.streams(run_folder) if (hot := journal.hot_folder(each))}
    for hot in (hot for root in roots for hot in root.glob("*/*") if hot.is_dir() and not hot.is_symlink()):
        with contextlib.suppress(OSError):
            home = journal.home_of(hot)
            if home is not None and journal.hot_folder(home) == hot:
                _bring_home(home)
            elif time.time() - _touched(hot) > FORGOTTEN_SECONDS:
                shutil.rmtree(hot)
                hot.parent.rmdir()


def _bring_home(home: Path) -> None:
    if journal.is_alive(home) or journal.has_witness(home.parent) or _is_attended(home.parent):
        return
    held = journal.lock(home / "shipper")
    if held is not None:
        try:
            Keeper(home).finish()
        finally:
            journal.unlock(held)


def _is_attended(run_folder: Path) -> bool:
    """Returns whether the run's own shipper or mirror is active.

    That process may know how the writer ended.
    """
    return any(journal.is_locked(each) for each in run_folder.glob(f"*.{identity.host()}.lock"))


def _touched(hot: Path) -> float:
    return max(path.lstat().st_mtime for path in (hot, *hot.iterdir()))
