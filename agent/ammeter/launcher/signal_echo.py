"""Distinguishes a signal to this process alone from one to the whole process group.

`timeout`, Slurm, systemd and a shell's `kill %1` signal every process; a container's runtime and `kill PID` signal one.
The kernel does not report which. A command that gets every signal twice ends differently: torchrun breaks off its
shutdown at the second SIGTERM. So a second process in the same group receives the signals too.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable

ECHO_SECONDS = 0.05
"""How long the other process has to receive the same signal."""


class Echo:
    """The second process. Create it while the signals are blocked, before any thread."""

    def __init__(self, signals: Iterable[signal.Signals], prepare: Callable[[], None]) -> None:
        """Forks the second process.

        prepare: called in that process; it has to make it end with this one.
        """
        self._file, write_end = os.pipe()
        self._received: list[int] = []
        self._process = os.fork()
        if self._process == 0:
            _report_signals(set(signals), prepare, write_end)
        os.close(write_end)

    def received(self, number: int) -> bool:
        """Returns whether the other process has received this signal too, or does at once."""
        while number not in self._received:
            if not select.select([self._file], [], [], ECHO_SECONDS)[0]:
                return False
            numbers = os.read(self._file, 64)
            if not numbers:
                return False
            self._received += numbers
        self._received.remove(number)
        return True

    def end(self) -> None:
        """Ends the second process. May be called twice."""
        if self._process:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
            os.close(self._file)
            self._process = 0


def _report_signals(signals: set[signal.Signals], prepare: Callable[[], None], write_end: int) -> None:
    try:
        prepare()
        while True:
            os.write(write_end, bytes([signal.sigwaitinfo(signals).si_signo]))
    finally:
        os._exit(1)
