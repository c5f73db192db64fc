"""Runs restore_check in a child process of the training process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

POLL_SECONDS = 0.1
"""Time between two checks whether the child has ended, each one system call."""

MAX_OUTPUT_BYTES = 2**16
"""Size limit of its answer: one pipe buffer, so that neither side blocks."""


Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class _Request:
    """A checkpoint to read, with what the process has to know of it."""

    saved: dict[str, Any]
    began: float | None
    trained: Shapes | None


class RestoreProcess:
    """Runs at most one child. Of several pending checkpoints only the newest is read next."""

    def __init__(self, on_result: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
        """Creates a process handle.

        Args:
            on_result: called with the saved state and the result of reading it.
        """
        self._on_result = on_result
        self._running: tuple[subprocess.Popen[bytes], dict[str, Any]] | None = None
        self._next: _Request | None = None
        self._due = 0.0

    def read(self, saved: dict[str, Any], began: float | None = None, trained: Shapes | None = None) -> None:
        """Starts reading a checkpoint, or queues it in place of the pending one.

        Args:
            saved: the data of the event with which it was saved.
            began: when the program began to save it, in seconds since the epoch.
            trained: name -> shape of the tensors that the run trains.
        """
        request = _Request(saved, began, trained)
        if self._running is None:
            self._start(request)
        else:
            self._next = request

    def _start(self, request: _Request) -> None:
        options = [] if request.began is None else ["--written", str(request.began)]
        quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "start_new_session": True}
        with open(os.memfd_create("ammeter-trained"), "w+b") as tensors:
            if request.trained:
                options.append("--trained")
                tensors.write(json.dumps(request.trained).encode())
                tensors.seek(0)
            command = [sys.executable, "-m", "ammeter.guards.restore_check", *options, request.saved["path"]]
            process = subprocess.Popen(command, stdin=tensors, **quiet)  # type: ignore[call-overload]
        self._running = process, request.saved

    def poll(self) -> None:
        """Handles the result if the child has ended. Never blocks."""
        if self._running is None or monotonic() < self._due:
            return
        self._due = monotonic() + POLL_SECONDS
        process, saved = self._running
        if process.poll() is None:
            return
        self._running = None
        self._on_result(saved, _result(process))
        if self._next is not None:
            following, self._next = self._next, None
            self._start(following)

    def stop(self) -> None:
        """Stops the child at the end of the run. Unread checkpoints stay unread."""
        self._next = None
        if self._running is not None:
            process, _ = self._running
            self._running = None
            with suppress(OSError):  # it has ended already
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _result(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Parses the output of the ended child."""
    assert process.stdout is not None
    with process.stdout as output:
        text = output.read(MAX_OUTPUT_BYTES)
    try:
        result = json.loads(text)
    except ValueError:
        result = None
    if isinstance(result, dict) and result.get("outcome"):
        return result
    return {"outcome": "skipped", "reason": f"the restore process ended with {process.returncode}", "seconds": 0.0}
