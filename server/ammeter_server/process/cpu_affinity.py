"""Keeps the threads of this process on one core, the one of its main thread.

Python runs one thread at a time, and the interpreter lock changes its owner several times in a batch. If the next owner
is on another core, that core has to wake up, and its caches are cold: a batch of one step costs half as much again.
Work outside the lock, compression and the database, shares the core too: a process with only large batches processes a
fifth fewer of them, at the same CPU time for each.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TASKS = Path("/proc/self/task")

PLACEMENT_SECONDS = 10.0
"""Between placements: another process may have started on the core."""

FREE_SECONDS = 0.05
"""Without affinity, in which the system moves the threads to a free core."""

_allowed: frozenset[int] = frozenset()


def keep_on_one_core() -> None:
    """Starts to keep all threads together.

    Has no effect without system support or with one core.
    """
    global _allowed
    if TASKS.is_dir() and hasattr(os, "sched_setaffinity") and len(cores := os.sched_getaffinity(0)) > 1:
        _allowed = frozenset(cores)
        threading.Thread(target=_keep, name="ammeter-core", daemon=True).start()


@contextmanager
def any_core() -> Iterator[None]:
    """Child processes that this thread starts inside the block have no affinity."""
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
        _set_affinity(_allowed)
        time.sleep(FREE_SECONDS)
        _set_affinity({_core()})
        time.sleep(PLACEMENT_SECONDS)


def _set_affinity(cores: Collection[int]) -> None:
    for task in os.listdir(TASKS):
        with suppress(OSError):  # the thread has ended, or the cores are no longer available
            os.sched_setaffinity(int(task), cores)


def _core() -> int:
    """The core of the main thread.

    It is field 39 of proc_pid_stat(5); field 3 is the first after the process name.
    """
    stat = (TASKS / str(os.getpid()) / "stat").read_text()
    return int(stat.rpartition(")")[2].split()[39 - 3])
