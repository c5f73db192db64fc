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
from ammeter.shipper.disk_cap import SegmentCleaner

ORPHAN_SECONDS = 7 * 86_400
"""Data on tmpfs without a visible journal is deleted after this time. Earlier, it may belong to another container."""


def recover_leftovers(run_folder: Path) -> None:
    """Moves orphaned segments on tmpfs to their streams' folders.

    Segments without a folder are deleted after ORPHAN_SECONDS. Only the tmpfs folders beside those of this run's
    streams are searched.
    """
    roots = {hot.parent.parent for stream in journal.streams(run_folder) if (hot := journal.hot_folder(stream))}
    for hot in (hot for root in roots for hot in root.glob("*/*") if hot.is_dir() and not hot.is_symlink()):
        with contextlib.suppress(OSError):
            stream = journal.stream_folder_of(hot)
            if stream is not None and journal.hot_folder(stream) == hot:
                _move_to_disk(stream)
            elif time.time() - _changed_at(hot) > ORPHAN_SECONDS:
                shutil.rmtree(hot)
                hot.parent.rmdir()


def _move_to_disk(stream: Path) -> None:
    if journal.is_alive(stream) or journal.has_exit_watcher(stream.parent) or _has_shipper(stream.parent):
        return
    lock = journal.lock(stream / "shipper")
    if lock is not None:
        try:
            SegmentCleaner(stream).finish()
        finally:
            journal.unlock(lock)


def _has_shipper(run_folder: Path) -> bool:
    """Returns whether the run's own shipper or mirror is active.

    That process may know how the writer ended.
    """
    return any(journal.is_locked(path) for path in run_folder.glob(f"*.{identity.host()}.lock"))


def _changed_at(hot: Path) -> float:
    return max(path.lstat().st_mtime for path in (hot, *hot.iterdir()))
