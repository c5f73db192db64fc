"""Tells a signal that was sent to us alone from one that the whole group got, the command included.

`timeout`, Slurm, systemd and a shell's `kill %1` tell every process; a container's runtime and `kill PID` tell one. The
kernel does not say which it was, and a command that hears everything twice ends otherwise than without us: torchrun
breaks off its shutdown at the second SIGTERM. So a second process of ours listens, in the same group.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Iterable

PATIENCE = 0.05
"""Seconds that the other process is given to hear the same."""


class Echo:
    """Start it while the signals are held back, before any thread."""

    def __init__(self, signals: Iterable[signal.Signals], prepare: Callable[[], None]) -> None:
        """prepare: called in the other process; it has to end with this one."""
        self._file, telling = os.pipe()
        self._heard: list[int] = []
        self._process = os.fork()
        if self._process == 0:
            _listen(set(signals), prepare, telling)
        os.close(telling)

    def heard(self, number: int) -> bool:
        """Whether the other process has got this signal as well, or gets it at once."""
        while number not in self._heard:
            if not select.select([self._file], [], [], PATIENCE)[0]:
                return False
            said = os.read(self._file, 64)
            if not said:
                return False
            self._heard += said
        self._heard.remove(number)
        return True

    def end(self) -> None:
        """Twice is fine."""
        if self._process:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._process, signal.SIGKILL)
                os.waitpid(self._process, 0)
            os.close(self._file)
            self._process = 0


def _listen(signals: set[signal.Signals], prepare: Callable[[], None], telling: int) -> None:
    try:
        prepare()
        while True:
            os.write(telling, bytes([signal.sigwaitinfo(signals).si_signo]))
    finally:
        os._exit(1)
