"""The collector's directives: a file in the stream's folder that the shipper writes and the training process reads."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from ammeter.journal.layout import open_plain, replace

CHECK_SECONDS = 1.0
"""Interval between two checks; each check is one stat of the file."""

MAX_DIRECTIVES = 16
"""Directives in the file: a process whose steps take long reads it rarely."""

FILE_NAME = "directives"

MAX_BYTES = 64 * 2**10
"""Bytes of the file that are read. A longer file is cut off, is not valid JSON then, and is ignored."""


class Directives:
    """The directives of one stream; each version of the file is returned once.

    due: time of the next check, in seconds of perf_counter.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self.due = 0.0
        self._last_version: tuple[int, int] | None = None

    def poll(self) -> list[dict[str, Any]]:
        """Returns directives that are new since the last check.

        The list is empty if the file is missing or is not valid output of the shipper.
        """
        now = perf_counter()
        if now < self.due:
            return []
        self.due = now + CHECK_SECONDS
        try:
            status = os.stat(self._path, follow_symlinks=False)
            version = (status.st_mtime_ns, status.st_ino)
            if version == self._last_version or not stat.S_ISREG(status.st_mode):
                return []
            self._last_version = version
            with open_plain(self._path) as file:
                directives = msgspec.json.decode(file.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError):  # missing file or invalid JSON: msgspec's errors are ValueErrors
            return []
        if not isinstance(directives, list):
            return []
        return [directive for directive in directives if isinstance(directive, dict)]


class DirectiveFile:
    """The file of one stream, for its shipper.

    It contains earlier directives, too, which the process may not have read yet and which it knows by their ids.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._earlier: list[dict[str, Any]] = []

    def leave(self, directives: list[dict[str, Any]]) -> None:
        """Adds directives. Those without an id, of an older collector, are in the file once.

        Raises:
            OSError: the file cannot be written.
        """
        replace(self._path, msgspec.json.encode([*self._earlier, *directives]))
        named = [directive for directive in directives if directive.get("id")]
        self._earlier = [*self._earlier, *named][-MAX_DIRECTIVES:]
