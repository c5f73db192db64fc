"""One training in a process of its own, forked from one that has imported torch: how it ended, and what it said."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

from ammeter import start

TRAINING_SECONDS = 60.0
"""Until a training is ended that does not end by itself; the longest take four."""

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ended:
    """code: of the exit, negative for a signal, None where its time was up. said: on both of its outputs."""

    code: int | None
    said: str
    seconds: float


def train(work: Callable[[], object], folder: Path, seconds: float = TRAINING_SECONDS, **environment: str) -> Ended:
    """Does the work in a child, with these variables and its journal below `folder`; one that takes longer is ended."""
    with trained(work, folder, **environment) as process:
        began = time.monotonic()
        process.join(seconds)
        took, code = time.monotonic() - began, process.exitcode
    return Ended(code, said_in(folder), took)


@contextmanager
def trained(work: Callable[[], object], folder: Path, **environment: str) -> Iterator[ForkProcess]:
    """The same, while it goes on; it is ended on the way out."""
    folder.mkdir(parents=True, exist_ok=True)
    process = _FORK.Process(target=_alone, args=(work, folder, environment))
    process.start()
    try:
        yield process
    finally:
        if process.is_alive():
            process.kill()
        process.join()


def said_in(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")


def _alone(work: Callable[[], object], folder: Path, environment: dict[str, str]) -> None:
    """In the child. The journal goes to the disk: a mirror of tmpfs for each run would be a thousand processes."""
    for name in [each for each in os.environ if each.startswith("AMMETER_")]:
        del os.environ[name]
    os.environ |= {"AMMETER_DIR": str(folder / "journal"), **environment}
    start.HOT_FOLDER = folder / "no-tmpfs"
    with open(folder / "said", "w", buffering=1) as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        sys.stdout = sys.stderr = said
        try:
            work()
        finally:
            said.flush()
