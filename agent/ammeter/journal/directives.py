"""What the collector asks of the training process: a file that the shipper leaves in the stream's folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from ammeter.journal.layout import open_plain

LOOK_SECONDS = 1.0
"""Between two looks: one stat of a file each."""

MAX_BYTES = 64 * 2**10
"""A longer file is none of the shipper's."""


class Directives:
    """Of one stream. Each version of the file is obeyed once. due: when to look again, in seconds of perf_counter."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "directives"
        self.due = 0.0
        self._seen: tuple[int, int] | None = None

    def take(self) -> list[dict[str, Any]]:
        """What is asked for since the last look; nothing where the file is missing or not what the shipper writes."""
        now = perf_counter()
        if now < self.due:
            return []
        self.due = now + LOOK_SECONDS
        try:
            found = os.stat(self._path, follow_symlinks=False)
            version = (found.st_mtime_ns, found.st_ino)
            if version == self._seen or not stat.S_ISREG(found.st_mode):
                return []
            self._seen = version
            with open_plain(self._path) as file:
                asked = msgspec.json.decode(file.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):  # not there, or no JSON: msgspec's errors are ValueErrors
            return []
        return [each for each in asked if isinstance(each, dict)] if isinstance(asked, list) else []
