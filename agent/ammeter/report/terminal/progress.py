"""Shows the progress of long work on stderr: one changing line on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO

LINE_SECONDS = 5.0
"""Between two lines in a log: often enough to see that the work goes on."""


class Progress:
    """Counts the parts of a piece of work."""

    def __init__(self, command: str, total: int, stream: TextIO | None = None) -> None:
        self._command, self._total, self._stream = command, total, stream or sys.stderr
        self._done, self._last = 0, time.monotonic()

    def begin(self, part: str) -> None:
        """Says which part begins."""
        self._done += 1
        text = f"ammeter {self._command}: {self._done} of {self._total}: {part}"
        if self._stream.isatty():
            self._stream.write(f"\r\x1b[K{text[:110]}")
        elif time.monotonic() - self._last >= LINE_SECONDS:
            self._stream.write(f"{text}\n")
            self._last = time.monotonic()
        self._stream.flush()

    def end(self) -> None:
        """Removes the line from a terminal."""
        if self._stream.isatty():
            self._stream.write("\r\x1b[K")
            self._stream.flush()
