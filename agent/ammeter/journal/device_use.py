"""The share of time in which a rank's device runs kernels: a file that the shipper writes to the stream's folder.

Only the shipper asks the driver, which may hang.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from ammeter.journal.layout import open_plain, replace

DEVICE_FILE = "device"
"""File in a stream's folder with the newest reading, as text."""

MAX_AGE_SECONDS = 15.0
"""Age from which a reading is of another time: three intervals of the shipper."""

MAX_BYTES = 32


def note_utilization(folder: Path, share: float) -> None:
    """Records a reading for the writer of a stream. A folder that is gone, or a full disk, is ignored."""
    with suppress(OSError):
        replace(folder / DEVICE_FILE, f"{share:.4f}".encode())


class DeviceUse:
    """The readings for one stream; each is returned once."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / DEVICE_FILE
        self._last_version: tuple[int, int] | None = None

    def poll(self) -> float | None:
        """Returns a new reading, 0 to 1, if there is one."""
        try:
            status = os.stat(self._path, follow_symlinks=False)
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._last_version or not stat.S_ISREG(status.st_mode):
                return None
            self._last_version = version
            with open_plain(self._path) as file:
                share = float(file.read(MAX_BYTES))
        except (OSError, ValueError):
            return None
        is_new = 0 <= time.time() - status.st_mtime < MAX_AGE_SECONDS
        return share if is_new and 0 <= share <= 1 else None
