"""Processes of the demo: started with a log, ended with everything they left behind."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

LOOK = 0.25
"""Seconds between two looks at something that is awaited."""


class CannotShowError(Exception):
    """Why there is nothing to show, in words."""


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: dict[str, str], journals: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends when the block does, with the shippers it may have left over its journals."""
    held = _Held()
    try:
        with held, log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
    except OSError as error:
        raise CannotShowError(f"{command[0]!r} cannot be run: {error}") from error
    try:
        held.deliver()
        yield process
    finally:
        _end(process)
        if journals is not None:
            _end_shippers(journals)


class _Held:
    """Signals that come inside the block wait for deliver(): a process that has begun and that nobody knows yet would
    be left behind."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._hold) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def deliver(self) -> None:
        for number in self._came:
            signal.raise_signal(number)

    def _hold(self, number: int, _: FrameType | None) -> None:
        self._came.append(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks the process and its children to end; after five seconds it is no question any more."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


def _end_shippers(journals: Path) -> None:
    """Waits for the shippers to leave by themselves, then ends those that still hold their lock."""
    if wait(lambda: not _shippers(journals), 10.0):
        return
    for process in _shippers(journals):
        os.kill(process, signal.SIGTERM)
    wait(lambda: not _shippers(journals), 5.0)


def _shippers(journals: Path) -> list[int]:
    """The processes that hold a shipper's lock on one of our runs."""
    holders = (_holder(path) for path in journals.glob("*/shipper.*.lock"))
    return [process for process in holders if process]


def _holder(path: Path) -> int:
    """Who holds the POSIX lock on a file, 0 for nobody."""
    layout = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, len, pid
    question = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with path.open("rb+") as file:
            kind, _, _, _, process = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, question))
    except OSError:
        return 0
    return 0 if kind == fcntl.F_UNLCK else int(process)


def wait(over: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not over():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK)
    return True


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(url: str) -> Any:
    """What a collector on this machine answers, None when it has nothing to say."""
    try:
        with _straight.open(url, timeout=5) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None


_straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
