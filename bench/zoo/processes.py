"""One training in a process of its own, forked from one that has imported torch: how it ended, and what it said."""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkProcess
from pathlib import Path

from ammeter.watching import setup

TRAINING_SECONDS = 60.0
"""Until a training is ended that does not end by itself; the longest take four."""

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Ended:
    """code: of the exit, negative for a signal, None where its time was up. said: on both of its outputs."""

    code: int | None
    said: str
    seconds: float


def train(
    work: Callable[[], object], folder: Path, seconds: float = TRAINING_SECONDS, ranks: int = 1, **environment: str
) -> Ended:
    """Does the work in a child, or one for each rank, with these variables and its journal below `folder`.

    One that takes longer is ended.
    """
    with trained(work, folder, ranks, **environment) as processes:
        began = time.monotonic()
        for each in processes:
            each.join(max(0.0, seconds - (time.monotonic() - began)))
        took, codes = time.monotonic() - began, [each.exitcode for each in processes]
    return Ended(next((each for each in codes if each != 0), 0), said_in(folder), took)


@contextmanager
def trained(
    work: Callable[[], object], folder: Path, ranks: int = 1, **environment: str
) -> Iterator[list[ForkProcess]]:
    """The same, while it goes on; it is ended on the way out."""
    folder.mkdir(parents=True, exist_ok=True)
    places = [{}] if ranks == 1 else list(as_torchrun_has_it(ranks))
    processes = [_FORK.Process(target=_alone, args=(work, folder, environment | place)) for place in places]
    for each in processes:
        each.start()
    try:
        yield processes
    finally:
        for each in processes:
            if each.is_alive():
                each.kill()
            each.join()


def as_torchrun_has_it(ranks: int) -> Iterator[dict[str, str]]:
    """The variables of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in map(str, range(ranks)):
        yield {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }


def said_in(folder: Path) -> str:
    return (folder / "said").read_text(errors="replace")


def _alone(work: Callable[[], object], folder: Path, environment: dict[str, str]) -> None:
    """In the child. The journal goes to the disk: a mirror of tmpfs for each run would be a thousand processes."""
    for name in [each for each in os.environ if each.startswith("AMMETER_")]:
        del os.environ[name]
    os.environ |= {"AMMETER_DIR": str(folder / "journal"), **environment}
    setup.HOT_FOLDER = folder / "no-tmpfs"
    said = (folder / f"said{os.environ.get('RANK', '').removeprefix('0')}").open("w", buffering=1)  # until it ends
    os.dup2(said.fileno(), 1)
    os.dup2(said.fileno(), 2)
    sys.stdout = sys.stderr = said
    work()
