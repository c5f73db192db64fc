"""Ends the stream of a dead writer, and keeps the stream's folder below its size limit."""

from __future__ import annotations

import time
from pathlib import Path

from ammeter import journal
from ammeter.shipper.disk_cap import SegmentCleaner
from ammeter.shipper.http import LogState
from ammeter.shipper.process_death import DeathCauses, left_to_exit_watcher

CLEAN_SECONDS = 1.0
"""Interval between two checks of a stream's segments; each check lists a folder."""


class Upkeep:
    """Manages the files of one stream while it is delivered.

    deaths: the causes of death of this host's writers, or None if the shipper cannot know them.
    """

    def __init__(
        self, folder: Path, stream: str, log_state: LogState, *, cap_bytes: int, deaths: DeathCauses | None
    ) -> None:
        self._folder = folder
        self._stream = stream
        self._log_state = log_state
        self._deaths = deaths
        self._cleaner = SegmentCleaner(folder, cap_bytes)
        self._end_at = 0.0
        self._clean_at = 0.0
        self._dead_since: float | None = None

    def poll(self, now: float, *, alive: bool, delivered: int, touched: int) -> None:
        """Ends the stream of a dead writer at once, and cleans the folder at intervals.

        Args:
            delivered, touched: offsets as in SegmentCleaner.clean().
        """
        try:
            if alive and self._deaths is not None:
                self._deaths.observe(self._folder)
            if not alive and now >= self._end_at and not self._waits_for_cause(now):
                self._end_at = now + CLEAN_SECONDS
                self._end_stream()
            if now >= self._clean_at:
                self._clean_at = now + CLEAN_SECONDS
                self._cleaner.clean(delivered, touched)
        except OSError as error:
            line = f"stream {self._stream}: its folder cannot be cleaned up: {error}"
            self._log_state(f"disk {self._stream}", str(error), line)

    def finish(self) -> None:
        """Moves everything off tmpfs after the end of the stream."""
        self._cleaner.finish()

    def _end_stream(self) -> None:
        ending = self._deaths.ending(self._folder) if self._deaths else journal.UNKNOWN_ENDING
        journal.end_stream(self._folder, time.time_ns(), ending)
        self._cleaner.finish()

    def _waits_for_cause(self, now: float) -> bool:
        """Returns whether an exit watcher or SIGTERM may still explain the writer's death."""
        if self._dead_since is None:
            self._dead_since = now
        return left_to_exit_watcher(self._folder, self._dead_since, self._deaths)
