"""Shipper processes that the tests start and find by their locks."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path

import ammeter
from ammeter.environment import identity
from ammeter.journal import Journal
from ammeter.wire.frames import Bye
from tests.agent.ship_parts import STREAM, event, hello, row

PYTHONPATH = str(Path(ammeter.__file__).parents[1])

seen_shippers: set[int] = set()
"""Shippers that a test saw: children of this process, whose end has to be noticed."""


def lock_owner(lock: Path) -> int:
    """The process that holds a lock, 0 for none."""
    with open(lock, "r+b") as file:
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK else 0


def run_lock(run_folder: Path) -> Path:
    return run_folder / f"shipper.{identity.host()}.lock"


def shipper_pid(run_folder: Path) -> int:
    lock = run_lock(run_folder)
    pid = lock_owner(lock) if lock.exists() else 0
    seen_shippers.add(pid)
    return pid


def here(run_folder: Path, stream: str = STREAM) -> Journal:
    """A journal of this host, which a started shipper looks for."""
    opened = Journal(run_folder / stream, segment_bytes=20_000)
    opened.hello(hello(stream, host=identity.host()))
    return opened


def fill(opened: Journal, rows: int = 30, first: int = 0) -> None:
    for step in range(first, first + rows):
        opened.append(row(step))
        if step % 10 == 3:
            opened.append(event(step))


def end(opened: Journal) -> None:
    opened.append(Bye("closed", 1, 9))
    opened.close()


def ended(run_folder: Path) -> bool:
    return not shipper_pid(run_folder)


def ship_once(folder: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ammeter.shipper.process", str(folder), "--url", url, "--once", *more]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)
