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

FIRST_SECONDS = (0.02, 0.03, 0.05, 0.1)
LOOK_SECONDS = 0.25
SELDOM_SECONDS = 5.0
OFTEN = 120
"""Pauses in seconds: those of the first searches, then LOOK_SECONDS up to search number OFTEN, then SELDOM_SECONDS.
OFTEN searches take half a minute, in which programs start."""

MOST = 512
"""Limit of processes per search."""

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?[a-z]*$")


@dataclass(frozen=True)
class Closed:
    """A Python process that has left no note.

    torch: whether torch's libraries are loaded. own: whether its Python is embedded in another program.
    """

    process: int
    words: tuple[str, ...]
    environment: frozenset[str]
    path: str
    torch: bool
    own: bool


class Observer:
    """A thread of `ammeter run`, never of a training program.

    inside: returns the processes that have left notes.
    """

    def __init__(self, inside: Callable[[], set[int]]) -> None:
        self.closed: dict[int, Closed] = {}
        self._inside = inside
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, process: int) -> None:
        self._thread = threading.Thread(target=self._look_on, args=(process,), name="ammeter-observer", daemon=True)
        self._thread.start()

    def stop(self) -> list[Closed]:
        """Returns the Python processes without Ammeter, those with torch first."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        inside = self._inside()
        found = [each for each in self.closed.values() if each.process not in inside]
        return sorted(found, key=lambda each: (not each.torch, each.process))

    def _look_on(self, process: int) -> None:
        looks = 0
        while not self._over.wait(_pause(looks)):
            looks += 1
            inside = self._inside()
            for each in _below(process):
                known = self.closed.get(each)
                if each not in inside and not (known and known.torch):
                    with suppress(OSError):
                        self._look_at(each)

    def _look_at(self, process: int) -> None:
        place = Path(f"/proc/{process}")
        name = os.path.basename(os.readlink(place / "exe"))
        libraries = (place / "maps").read_text(errors="replace")
        is_python = bool(_PYTHON.match(name))
        self.closed.pop(process, None)  # it may have become another program
        if is_python or "libpython" in libraries or "libtorch_python" in libraries:
            environment = dict(
                each.partition("=")[::2] for each in (place / "environ").read_text(errors="replace").split("\0")
            )
            words = tuple((place / "cmdline").read_text(errors="replace").rstrip("\0").split("\0"))
            torch = "libtorch" in libraries
            self.closed[process] = Closed(
                process, words, frozenset(environment), environment.get("PYTHONPATH", ""), torch, not is_python
            )


def _pause(looks: int) -> float:
    if looks < len(FIRST_SECONDS):
        return FIRST_SECONDS[looks]
    return LOOK_SECONDS if looks < OFTEN else SELDOM_SECONDS


def _below(process: int) -> Iterator[int]:
    """Yields the process and its visible descendants."""
    waiting, seen = [process], 0
    while waiting and seen < MOST:
        each = waiting.pop()
        seen += 1
        yield each
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                with suppress(OSError):
                    waiting += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())
