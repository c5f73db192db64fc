"""Looks at the Pythons that the command has started, for why one of them cannot be watched: it may not let us in.

Everything is read from proc(5), in `ammeter run`'s own process. Once a process has left a note we are inside it, and
it is not looked at any more.
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
"""Looks with so much before them, of which the first come often: half a minute, in which programs start."""

MOST = 512
"""Processes that are looked at."""

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?[a-z]*$")


@dataclass(frozen=True)
class Closed:
    """A Python that has left no note. torch: whether its libraries are in it. own: its Python is part of a program."""

    process: int
    words: tuple[str, ...]
    environment: frozenset[str]
    path: str
    torch: bool
    own: bool


class Observer:
    """A thread of `ammeter run`, never of a program that trains. inside: the processes that have left notes."""

    def __init__(self, inside: Callable[[], set[int]]) -> None:
        self.closed: dict[int, Closed] = {}
        self._inside = inside
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, process: int) -> None:
        self._thread = threading.Thread(target=self._look_on, args=(process,), name="ammeter-observer", daemon=True)
        self._thread.start()

    def stop(self) -> list[Closed]:
        """What was seen of Pythons that we are not in, those with torch first."""
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
    """The process and those that descend from it, as far as they can be seen."""
    waiting, seen = [process], 0
    while waiting and seen < MOST:
        each = waiting.pop()
        seen += 1
        yield each
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{each}/task"):
                with suppress(OSError):
                    waiting += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())
