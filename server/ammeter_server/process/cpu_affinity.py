"""Keeps the threads of this process on one core: the one on which the system has put the first of them.

Python lets one of its threads work at a time, and the turn changes several times in a batch. Where it goes to another
core, that core has to be woken and finds nothing of what is needed in its caches: batches of one step cost half as much
again. What does without Python's lock, compression and the database, shares the core too: a process that does nothing
but take large batches takes a fifth fewer of them, at the same cost for each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")

PAUSE = 10.0
"""Seconds between two looks whether the core is still a good one: another process may have come to it."""

FREE = 0.05
"""Seconds for which the threads may go anywhere, so that the system puts them where there is room."""

_allowed: frozenset[int] = frozenset()


def stay() -> None:
    """Begins to keep all threads together. Nothing is done where the system cannot, or where there is one core."""
    global _allowed
    if TASKS.is_dir() and hasattr(os, "sched_setaffinity") and len(cores := os.sched_getaffinity(0)) > 1:
        _allowed = frozenset(cores)
        threading.Thread(target=_keep, name="ammeter-core", daemon=True).start()


@contextmanager
def anywhere() -> Iterator[None]:
    """Whatever process this thread begins meanwhile is not kept where its parent is."""
    if not _allowed:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _keep() -> None:
    while True:
        _put(_allowed)
        time.sleep(FREE)
        _put({_core()})
        time.sleep(PAUSE)


def _put(cores: Collection[int]) -> None:
    for task in os.listdir(TASKS):
        with suppress(OSError):  # the thread has ended, or the cores are not ours any more
            os.sched_setaffinity(int(task), cores)


def _core() -> int:
    """That of the main thread: number 39 of what proc_pid_stat(5) lists, the third of which is the first behind the
    name."""
    said = (TASKS / str(os.getpid()) / "stat").read_text()
    return int(said.rpartition(")")[2].split()[39 - 3])
