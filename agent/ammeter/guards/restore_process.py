"""The process that reads a checkpoint back, as the training process sees it: started, asked now and then, ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

LOOK_SECONDS = 0.1
"""Between two looks whether it has ended: one system call each."""

MAX_BYTES = 2**16
"""Of its answer: as much as a pipe holds, so that nobody waits for anybody."""


class Child:
    """At most one at a time. `waiting` takes its place when it ends: of several checkpoints the newest is read."""

    def __init__(self, done: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
        """done: called with what was saved and with what was read of it."""
        self._done = done
        self._running: tuple[subprocess.Popen[bytes], dict[str, Any]] | None = None
        self._waiting: dict[str, Any] | None = None
        self._due = 0.0

    def read(self, saved: dict[str, Any]) -> None:
        """Begins with it, or with this one instead of another that waits."""
        if self._running is not None:
            self._waiting = saved
            return
        command = [sys.executable, "-m", "ammeter.guards.restore_check", saved["path"]]
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **quiet)  # type: ignore[call-overload]
        self._running = process, saved

    def look(self) -> None:
        """Whether it has ended; never waits."""
        if self._running is None or monotonic() < self._due:
            return
        self._due = monotonic() + LOOK_SECONDS
        process, saved = self._running
        if process.poll() is None:
            return
        self._running = None
        self._done(saved, _answer(process))
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self.read(waiting)

    def end(self) -> None:
        """The run is over: what is not read by now is left."""
        self._waiting = None
        if self._running is not None:
            process, _ = self._running
            self._running = None
            with suppress(OSError):  # it has ended by itself
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _answer(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """What it printed before it ended."""
    assert process.stdout is not None
    with process.stdout as output:
        said = output.read(MAX_BYTES)
    try:
        told = json.loads(said)
    except ValueError:
        told = None
    if isinstance(told, dict) and told.get("outcome"):
        return told
    return {"outcome": "skipped", "reason": f"the process that read it ended with {process.returncode}", "seconds": 0.0}
