"""Child processes of the demo, with logs and complete clean-up."""

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

POLL_SECONDS = 0.25
"""Seconds between polls."""


class CannotShowError(Exception):
    """The demo cannot continue; the message gives the reason."""


@contextmanager
def started(
    command: Sequence[str], log: Path, environment: dict[str, str], journals: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a process that ends with the block, together with shippers of its journals."""
    deferred = _DeferredSignals()
    try:
        with deferred, log.open("wb") as out:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, start_new_session=True
            )
    except OSError as error:
        raise CannotShowError(f"{command[0]!r} cannot be started: {error}") from error
    try:
        deferred.deliver()
        yield process
    finally:
        _end(process)
        if journals is not None:
            _end_shippers(journals)


class _DeferredSignals:
    """Defers signals in the block until deliver().

    A signal during the start of a process would leave the process behind.
    """

    def __init__(self) -> None:
        self._received: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._defer) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def deliver(self) -> None:
        for number in self._received:
            signal.raise_signal(number)

    def _defer(self, number: int, _: FrameType | None) -> None:
        self._received.append(number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminates the process and its children; kills them after five seconds."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            continue


def _end_shippers(journals: Path) -> None:
    """Waits for the shippers to exit, then terminates those that still have their lock."""
    if wait(lambda: not _shippers(journals), 10.0):
        return
    for process in _shippers(journals):
        os.kill(process, signal.SIGTERM)
    wait(lambda: not _shippers(journals), 5.0)


def _shippers(journals: Path) -> list[int]:
    """The processes that own the shipper lock of one of the demo's runs."""
    holders = (_holder(path) for path in journals.glob("*/shipper.*.lock"))
    return [process for process in holders if process]


def _holder(path: Path) -> int:
    """The process that owns the POSIX lock on a file; 0 if none."""
    layout = "hhqqi"  # struct flock of 64-bit Linux: type, whence, start, len, pid
    question = struct.pack(layout, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        with path.open("rb+") as file:
            kind, _, _, _, process = struct.unpack(layout, fcntl.fcntl(file, fcntl.F_GETLK, question))
    except OSError:
        return 0
    return 0 if kind == fcntl.F_UNLCK else int(process)


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    """Polls the condition; returns whether it became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def get_json(url: str) -> Any:
    """The JSON response of the demo's collector; None on any error."""
    try:
        with _without_proxy.open(url, timeout=5) as answer:
            return json.loads(answer.read())
    except (OSError, ValueError):
        return None


_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
