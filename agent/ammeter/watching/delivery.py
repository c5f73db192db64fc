"""Brings a journal to the collector, or from tmpfs to disk: starts the process and waits for its end."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ammeter import journal
from ammeter.redaction import process_redactor

if TYPE_CHECKING:
    from ammeter.environment.settings import Settings
    from ammeter.wire.frames import Hello

log = logging.getLogger("ammeter")

TMPFS_FOLDER = Path("/dev/shm")  # noqa: S108 - a private folder is made in it
MIN_FREE_TMPFS_BYTES = 256 * 2**20
MAX_HOST_TMPFS_BYTES = 16 * 2**20
"""Open segments use tmpfs if MIN_FREE_TMPFS_BYTES are free. All ranks of a host together use at most
MAX_HOST_TMPFS_BYTES."""


def tmpfs_folder(hello: Hello) -> Path | None:
    """Returns the tmpfs folder of the open segment, or None.

    On tmpfs, journal writes do not wait behind dirty pages of other processes.
    """
    try:
        free = os.statvfs(TMPFS_FOLDER)
        if free.f_bavail * free.f_frsize < MIN_FREE_TMPFS_BYTES:
            return None
        user_folder = journal.private_folder(TMPFS_FOLDER / f"ammeter-{os.geteuid()}")
        return journal.private_folder(user_folder / hello.run) / hello.stream
    except OSError:
        return None


def begin_process(writer: journal.Journal, settings: Settings) -> Callable[[], None]:
    """Begins to start the shipper, or the mirror if there is no collector, which takes as long as watch() itself.

    Returns:
        A function that waits until the process is detached. If the mirror cannot start, the journal is written to disk
        instead.
    """
    from ammeter.shipper import process as ship

    finish = ship.begin(writer.folder.parent, settings.url, settings.token)

    def finish_start() -> None:
        refusal = finish()
        if refusal and not settings.url:
            writer.leave_tmpfs()
            _move_to_disk(writer.folder, 0)
        elif refusal:
            with suppress(Exception):  # the program's log handler may raise
                log.warning("ammeter: %s", refusal)

    return finish_start


def await_delivery(folder: Path, settings: Settings) -> None:
    """Waits until the collector has acknowledged the journal, or until it is on disk."""
    if settings.url:
        _wait_for_collector(folder, settings)
    else:
        _move_to_disk(folder, settings.flush)


def _move_to_disk(folder: Path, seconds: float) -> None:
    """Moves the journal from tmpfs to the stream's folder.

    Done before exit, because the container may end with this process.
    """
    from ammeter.shipper.disk_cap import SegmentCleaner

    deadline = time.monotonic() + seconds
    with suppress(OSError):  # the mirror keeps retrying
        while (lock := journal.lock(folder / "shipper")) is None:
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)
        try:
            SegmentCleaner(folder).finish()
        finally:
            journal.unlock(lock)


def _wait_for_collector(folder: Path, settings: Settings) -> None:
    """Waits, at most settings.flush seconds, until the collector has acknowledged everything.

    The event that ends this process may end the shipper, too.
    """
    deadline = time.monotonic() + settings.flush
    with suppress(OSError):  # folder removed or unreadable: no acknowledgement will come
        end = journal.end_of(folder)
        while time.monotonic() < deadline and journal.acknowledged(folder) < end:
            time.sleep(0.01)
        if settings.flush and journal.acknowledged(folder) < end:
            _warn_undelivered(folder, settings)


def _warn_undelivered(folder: Path, settings: Settings) -> None:
    from ammeter.shipper import process as ship

    run_folder = folder.parent
    with suppress(Exception):  # the program's log handler may raise
        lines = (run_folder / ship.LOG_NAME).read_text(errors="replace").splitlines()
        lines += [journal.refusal(folder)] if journal.refusal(folder) else []
        url = process_redactor.text(settings.url or "")
        log.warning(
            "ammeter: after %g s %s has not acknowledged all of this run; the shipper retries. Its last message: %s. "
            "Until then: ammeter report %s",
            *(settings.flush, url, lines[-1] if lines else "none yet", run_folder),
        )
