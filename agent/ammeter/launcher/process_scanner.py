"""Finds out why a Python process of the command cannot be watched.

All data comes from proc(5), read in the process of `ammeter run`. A process that has left a note runs Ammeter, and is
not examined any more.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

FIRST_PAUSES_SECONDS = (0.02, 0.03, 0.05, 0.1)
SHORT_PAUSE_SECONDS = 0.25
LONG_PAUSE_SECONDS = 5.0
SHORT_PAUSES = 120
"""Pauses between two searches: the first ones, then short ones up to search number SHORT_PAUSES, then long ones. The
short ones last half a minute, in which programs start."""

MAX_PROCESSES = 512
"""Limit of processes per search."""

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?[a-z]*$")


@dataclass(frozen=True)
class UnwatchedPython:
    """A Python process that has left no note.

    variables: names of its environment variables. has_torch: whether torch's libraries are loaded. embedded: whether
    its Python is part of another program.
    """

    process: int
    command: tuple[str, ...]
    variables: frozenset[str]
    python_path: str
    has_torch: bool
    embedded: bool


class ProcessScanner:
    """A thread of `ammeter run`, never of a training program.

    watched: returns the processes that have left notes.
    """

    def __init__(self, watched: Callable[[], set[int]]) -> None:
        self.unwatched: dict[int, UnwatchedPython] = {}
        self._watched = watched
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, process: int) -> None:
        self._thread = threading.Thread(target=self._scan, args=(process,), name="ammeter-scanner", daemon=True)
        self._thread.start()

    def stop(self) -> list[UnwatchedPython]:
        """Returns the Python processes without Ammeter, those with torch first."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        watched = self._watched()
        unwatched = [python for python in self.unwatched.values() if python.process not in watched]
        return sorted(unwatched, key=lambda python: (not python.has_torch, python.process))

    def _scan(self, root: int) -> None:
        searches = 0
        while not self._stopped.wait(_pause_seconds(searches)):
            searches += 1
            watched = self._watched()
            for process in _with_descendants(root):
                known = self.unwatched.get(process)
                if process not in watched and not (known and known.has_torch):
                    with suppress(OSError):
                        self._examine(process)

    def _examine(self, process: int) -> None:
        folder = Path(f"/proc/{process}")
        name = os.path.basename(os.readlink(folder / "exe"))
        libraries = (folder / "maps").read_text(errors="replace")
        is_python = bool(_PYTHON.match(name))
        self.unwatched.pop(process, None)  # it may have become another program
        if is_python or "libpython" in libraries or "libtorch_python" in libraries:
            variables = (folder / "environ").read_text(errors="replace").split("\0")
            environment = dict(variable.partition("=")[::2] for variable in variables)
            self.unwatched[process] = UnwatchedPython(
                process,
                command=tuple((folder / "cmdline").read_text(errors="replace").rstrip("\0").split("\0")),
                variables=frozenset(environment),
                python_path=environment.get("PYTHONPATH", ""),
                has_torch="libtorch" in libraries,
                embedded=not is_python,
            )


def _pause_seconds(searches: int) -> float:
    if searches < len(FIRST_PAUSES_SECONDS):
        return FIRST_PAUSES_SECONDS[searches]
    return SHORT_PAUSE_SECONDS if searches < SHORT_PAUSES else LONG_PAUSE_SECONDS


def _with_descendants(root: int) -> Iterator[int]:
    """Yields the process and its visible descendants."""
    queue, count = [root], 0
    while queue and count < MAX_PROCESSES:
        process = queue.pop()
        count += 1
        yield process
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with suppress(OSError):
                    queue += map(int, Path(f"/proc/{process}/task/{thread}/children").read_text().split())
