"""Copies journals from tmpfs to disk when there is no collector.

It is a separate process, so that no step waits for the disk. At intervals it appends new data of an open segment to its
copy in the stream's folder, so that almost nothing is lost when a container ends. Closed segments are moved, and so is
a whole stream once its writer is gone.
"""

from __future__ import annotations

import time
from pathlib import Path

from ammeter import journal
from ammeter.shipper.disk_cap import Keeper
from ammeter.shipper.process_death import Deaths

MIRROR_SECONDS = 0.5
"""Interval between two copies, which is how much of a journal is lost when the machine crashes."""

WITNESS_SECONDS = 2.0
"""How long a dead writer's stream is left to `ammeter run`, which knows what killed the writer and records it."""

GIVE_UP_SECONDS = 3600.0
"""How long the disk may refuse data, while no writer lives, before the mirror leaves the data on tmpfs."""

HURRY_SECONDS = 8.0
"""Time left after SIGTERM for writers that the same signal ends."""


class Mirror:
    """Mirrors the streams of one run that have a tmpfs folder on this host."""

    def __init__(self, run_folder: Path) -> None:
        self._run_folder = run_folder
        self._dead_since: dict[Path, float] = {}
        self._deadline = float("inf")
        self._deaths = Deaths()

    @property
    def hurried(self) -> bool:
        return self._deadline != float("inf")

    def has_work(self) -> bool:
        """Returns whether any stream of the run is on tmpfs."""
        return bool(self._streams())

    def hurry(self) -> None:
        """Requests an exit once every writer is gone, in a few seconds at most."""
        self._deaths.note_termination()
        self._deadline = min(self._deadline, time.monotonic() + HURRY_SECONDS)

    def run(self) -> None:
        """Runs until nothing of the run is on tmpfs."""
        refused_since = None
        while time.monotonic() < self._deadline:
            try:
                if not self.poll():
                    return
                refused_since = None
            except OSError as error:
                if refused_since is None:
                    print(time.strftime("%Y-%m-%d %H:%M:%S"), f"waits for the disk: {error}", flush=True)
                    refused_since = time.monotonic()
                if not self._lives() and time.monotonic() - refused_since > GIVE_UP_SECONDS:
                    return
            time.sleep(MIRROR_SECONDS)

    def poll(self) -> bool:
        """Mirrors all streams once. Returns whether some are still on tmpfs.

        Raises:
            OSError: a stream could not be copied; the others were.
        """
        refused: OSError | None = None
        hot = self._streams()
        for folder in hot:
            try:
                self._bring(folder)
            except OSError as error:  # the other streams are still copied
                refused = error
        if refused:
            raise refused
        return bool(hot)

    def _streams(self) -> list[Path]:
        return [
            each for each in journal.streams(self._run_folder) if (hot := journal.hot_folder(each)) and hot.is_dir()
        ]

    def _lives(self) -> bool:
        return any(journal.is_alive(each) for each in self._streams())

    def _bring(self, folder: Path) -> None:
        held = journal.lock(folder / "shipper")
        if held is None:  # `ammeter ship` does it, or the writer itself at its end
            return
        try:
            if journal.is_alive(folder):
                self._deaths.look(folder)
                *closed, last = journal.segments(folder) or [(0, folder / "none")]
                for path in _on_tmpfs(closed, folder):
                    journal.move(path, folder)
                for path in _on_tmpfs([last], folder):
                    journal.mirror(path, folder)
            elif not self._left_to_witness(folder):
                self._say_how_it_ended(folder)
                Keeper(folder).finish()
        finally:
            journal.unlock(held)

    def _say_how_it_ended(self, folder: Path) -> None:
        """Ends the stream if the cause of death is known.

        Otherwise the free lock is sufficient: it shows readers that the writer is gone.
        """
        ending = self._deaths.ending(folder)
        if ending.by:
            journal.settle(folder, time.time_ns(), ending)

    def _left_to_witness(self, folder: Path) -> bool:
        since = self._dead_since.setdefault(folder, time.monotonic())
        waited = time.monotonic() - since >= WITNESS_SECONDS
        awaited = self._deaths.awaits(since)
        return not waited and (awaited or journal.has_witness(folder.parent)) and not journal.ended(folder)


def _on_tmpfs(segments: list[tuple[int, Path]], folder: Path) -> list[Path]:
    return [path for _, path in segments if path.parent != folder]
