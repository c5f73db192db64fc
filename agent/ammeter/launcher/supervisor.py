"""A parent that nobody notices: it hands signals on, waits, and ends as its child has ended."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence

from ammeter.launcher.signal_echo import Echo
from ammeter.launcher.termination_source import NOTED, Asked

HANDED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals for the command. What its whole group gets, from the terminal for instance, reaches it without us."""

_PR_SET_PDEATHSIG = 1

STRAGGLE_SECONDS = 0.05
"""Whoever signals the processes of a job one by one may reach us a moment behind the command."""


@contextlib.contextmanager
def waiting() -> Iterator[Waiting]:
    """Holds signals back while the command runs; afterwards they do again what they did before."""
    waited = {*HANDED_ON, signal.SIGCHLD, signal.SIGCONT}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    echo = Echo(HANDED_ON, _end_with_parent())
    try:
        yield Waiting(waited, before, echo)
    finally:
        echo.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Waiting:
    """The signals that are held back, and those that were when we came."""

    def __init__(self, waited: set[signal.Signals], before: set[int | signal.Signals], echo: Echo) -> None:
        self._waited = waited
        self._before = before
        self._echo = echo
        self.asked = Asked()

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Starts the command as if it stood in our place: its process id. Raises OSError when that cannot be done."""
        end_with_us = _end_with_parent()

        def prepare() -> None:
            end_with_us()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._before)

        child = subprocess.Popen(command, env=environment, close_fds=False, preexec_fn=prepare)
        child.returncode = 0  # it is waited for below, as orphans are
        return child.pid

    def wait(self, process: int) -> int:
        """The command's wait status, once it has ended. It stays a zombie: whoever looks on may read it there, too."""
        while True:
            received = signal.sigwaitinfo(self._waited)
            self.asked.note(received)
            if received.si_signo == signal.SIGCHLD:
                status = _ended(process)
                if status is not None:
                    self._take_what_is_left(status)
                    return status
            elif received.si_signo != signal.SIGCONT and not self._echo.heard(received.si_signo):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, received.si_signo)

    def _take_what_is_left(self, status: int) -> None:
        """Signals that came with the command's end: what the command has had shall not end us before our words."""
        terminated = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        wait = STRAGGLE_SECONDS if terminated and self.asked.last() is None else 0
        while (received := signal.sigtimedwait(NOTED, wait)) is not None:
            self.asked.note(received)
            wait = 0


def _end_with_parent() -> Callable[[], None]:
    """What a child calls first: who kills us means the command, and it must not go on without its parent."""
    libc = ctypes.CDLL(None)
    us = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:
            os._exit(1)

    return prepare


def reap(process: int) -> None:
    """Asks for a command that has ended: its CPU time counts as ours, as `time` tells it."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)


def end_like(status: int) -> int:
    """The exit code to end with. Does not return when a signal killed the command: the same one kills us."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def ended(status: int) -> str:
    """How a command ended by its wait status, in words; '' where it ended well."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.waitstatus_to_exitcode(status)
    return f"ended with exit code {code}" if code else ""


def say(line: str) -> None:
    """A line on stderr; one that is closed hears nothing."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _ended(process: int) -> int | None:
    """The status of the command if it has ended. As the first process of a container we have orphans to reap."""
    while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if found.si_pid == process:
            return found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
        os.waitpid(found.si_pid, 0)
    return None
