"""Copies journals from tmpfs to disk when there is no collector.

It is a separate process, so that no step waits for the disk. At intervals it appends new data of an open segment to its
copy in the stream's folder, so that almost nothing is lost when a container ends. Closed segments are moved, and so is
a whole stream once its writer is gone.
"""

from __future__ import annotations

import time
from pathlib import Path

from ammeter import journal
from ammeter.shipper.disk_cap import SegmentCleaner
from ammeter.shipper.process_death import DeathCauses, left_to_exit_watcher

MIRROR_SECONDS = 0.5
"""Interval between two copies, which is how much of a journal is lost when the machine crashes."""

GIVE_UP_SECONDS = 3600.0
"""How long the disk may refuse data, while no writer lives, before the mirror leaves the data on tmpfs."""

EXIT_SECONDS = 8.0
"""Time left after SIGTERM for writers that the same signal ends."""


class Mirror:
    """Mirrors the streams of one run that have a tmpfs folder on this host."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._dead_since: dict[Path, float] = {}
        self._deadline = float("inf")
        self._deaths = DeathCauses()

    @property
    def exit_requested(self) -> bool:
        return self._deadline != float("inf")

    def has_work(self) -> bool:
        """Returns whether any stream of the run is on tmpfs."""
        return bool(self._streams())

    def request_exit(self) -> None:
        """Requests an exit once every writer is gone, in a few seconds at most."""
        self._deaths.note_termination()
        self._deadline = min(self._deadline, time.monotonic() + EXIT_SECONDS)

    def run(self) -> None:
        """Runs until nothing of the run is on tmpfs."""
        failing_since = None
        while time.monotonic() < self._deadline:
            try:
                if not self.poll():
                    return
                failing_since = None
            except OSError as error:
                if failing_since is None:
                    line = f"the journal cannot be copied to disk yet: {error}"
                    print(time.strftime("%Y-%m-%d %H:%M:%S"), line, flush=True)
                    failing_since = time.monotonic()
                if not self._has_writer() and time.monotonic() - failing_since > GIVE_UP_SECONDS:
                    return
            time.sleep(MIRROR_SECONDS)

    def poll(self) -> bool:
        """Mirrors all streams once. Returns whether some are still on tmpfs.

        Raises:
            OSError: a stream could not be copied; the others were.
        """
        failure: OSError | None = None
        streams = self._streams()
        for folder in streams:
            try:
                self._mirror(folder)
            except OSError as error:  # the other streams are still copied
                failure = error
        if failure:
            raise failure
        return bool(streams)

    def _streams(self) -> list[Path]:
        streams = journal.streams(self._run_folder)
        return [stream for stream in streams if (hot := journal.hot_folder(stream)) and hot.is_dir()]

    def _has_writer(self) -> bool:
        return any(journal.is_alive(stream) for stream in self._streams())

    def _mirror(self, folder: Path) -> None:
        lock = journal.lock(folder / "shipper")
        if lock is None:  # `ammeter ship` does it, or the writer itself at its end
            return
        try:
            if journal.is_alive(folder):
                self._deaths.observe(folder)
                *closed, last = journal.segments(folder) or [(0, folder / "none")]
                for path in _on_tmpfs(closed, folder):
                    journal.move(path, folder)
                for path in _on_tmpfs([last], folder):
                    journal.mirror(path, folder)
            elif not self._waits_for_cause(folder):
                self._record_cause(folder)
                SegmentCleaner(folder).finish()
        finally:
            journal.unlock(lock)

    def _record_cause(self, folder: Path) -> None:
        """Ends the stream if the cause of death is known.

        Otherwise the free lock is sufficient: it shows readers that the writer is gone.
        """
        ending = self._deaths.ending(folder)
        if ending.ended_by:
            journal.end_stream(folder, time.time_ns(), ending)

    def _waits_for_cause(self, folder: Path) -> bool:
        dead_since = self._dead_since.setdefault(folder, time.monotonic())
        return left_to_exit_watcher(folder, dead_since, self._deaths)


def _on_tmpfs(segments: list[tuple[int, Path]], folder: Path) -> list[Path]:
    return [path for _, path in segments if path.parent != folder]
