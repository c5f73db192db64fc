"""Trainings in forked processes, which have torch already: their exit codes and output."""

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

import torch._dynamo  # noqa: F401 - the first optimizer imports it, and each training would do so again

from ammeter.watching import delivery

TRAINING_SECONDS = 60.0
"""Time limit of a training; the longest take four seconds."""

_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Exit:
    """code: exit code, negative for a signal, None after the time limit. output: stdout and stderr."""

    code: int | None
    output: str
    seconds: float


def train(
    work: Callable[[], object], folder: Path, seconds: float = TRAINING_SECONDS, ranks: int = 1, **environment: str
) -> Exit:
    """Runs a function in a child process, or in one per rank, and ends it after the time limit.

    Args:
        folder: The folder of the journal and the output.
        environment: Additional variables.
    """
    with trained(work, folder, ranks, **environment) as processes:
        began = time.monotonic()
        for process in processes:
            process.join(max(0.0, seconds - (time.monotonic() - began)))
        took, codes = time.monotonic() - began, [process.exitcode for process in processes]
    return Exit(next((code for code in codes if code != 0), 0), output_of(folder), took)


@contextmanager
def trained(
    work: Callable[[], object], folder: Path, ranks: int = 1, **environment: str
) -> Iterator[list[ForkProcess]]:
    """Starts the processes, yields them, and ends those that still run."""
    folder.mkdir(parents=True, exist_ok=True)
    variables = [{}] if ranks == 1 else list(torchrun_variables(ranks))
    processes = [_FORK.Process(target=_alone, args=(work, folder, environment | rank)) for rank in variables]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def torchrun_variables(ranks: int) -> Iterator[dict[str, str]]:
    """The variables that torchrun sets for each rank."""
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


def output_of(folder: Path) -> str:
    return (folder / "output").read_text(errors="replace")


def _alone(work: Callable[[], object], folder: Path, environment: dict[str, str]) -> None:
    """Runs in the child. The journal is on disk: a mirror process for each run would be a thousand processes."""
    for name in [name for name in os.environ if name.startswith("AMMETER_")]:
        del os.environ[name]
    os.environ |= {"AMMETER_DIR": str(folder / "journal"), **environment}
    delivery.TMPFS_FOLDER = folder / "no-tmpfs"
    log = (folder / f"output{os.environ.get('RANK', '').removeprefix('0')}").open("w", buffering=1)  # until it ends
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    sys.stdout = sys.stderr = log
    work()
