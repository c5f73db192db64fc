"""A transparent parent process: forwards signals, waits, and ends as its child ended."""

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
from ammeter.launcher.termination_source import RECORDED_SIGNALS, SignalRecord

FORWARDED_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are forwarded to the command. It receives signals to the whole group, such as those of the terminal,
directly."""

_PR_SET_PDEATHSIG = 1

LATE_SIGNAL_SECONDS = 0.05
"""A sender that signals the processes of a job one by one may reach this process slightly after the command."""


@contextlib.contextmanager
def supervision() -> Iterator[Supervisor]:
    """Blocks signals while the command runs, and restores the previous mask afterwards."""
    blocked = {*FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGCONT}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    echo = Echo(FORWARDED_SIGNALS, _end_with_parent())
    try:
        yield Supervisor(blocked, mask, echo)
    finally:
        echo.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


class Supervisor:
    """The parent of the command.

    blocked: the signals that it receives by waiting. mask: the original signal mask. signals: those received so far.
    """

    def __init__(self, blocked: set[signal.Signals], mask: set[int | signal.Signals], echo: Echo) -> None:
        self._blocked = blocked
        self._mask = mask
        self._echo = echo
        self.signals = SignalRecord()

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        """Starts the command with the original signal mask, and returns its process id.

        Raises OSError if it cannot be started.
        """
        end_with_us = _end_with_parent()

        def prepare() -> None:
            end_with_us()
            signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

        child = subprocess.Popen(command, env=environment, close_fds=False, preexec_fn=prepare)
        child.returncode = 0  # wait() below waits for it, as for orphans
        return child.pid

    def wait(self, process: int) -> int:
        """Waits for the end of the command and returns its wait status.

        The command stays a zombie, so that the exit watcher can read the status too.
        """
        while True:
            info = signal.sigwaitinfo(self._blocked)
            self.signals.add(info)
            if info.si_signo == signal.SIGCHLD:
                status = _wait_status(process)
                if status is not None:
                    self._receive_late_signals(status)
                    return status
            elif info.si_signo != signal.SIGCONT and not self._echo.received(info.si_signo):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, info.si_signo)

    def _receive_late_signals(self, status: int) -> None:
        """Receives signals that came with the command's end.

        Signals that the command has received must not end this process before it prints the result.
        """
        terminated = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        wait_seconds = LATE_SIGNAL_SECONDS if terminated and self.signals.last_sigterm() is None else 0
        while (info := signal.sigtimedwait(RECORDED_SIGNALS, wait_seconds)) is not None:
            self.signals.add(info)
            wait_seconds = 0


def _end_with_parent() -> Callable[[], None]:
    """Returns a function that makes a child end with this process.

    A sender that kills this process means the command, which must not continue without its parent.
    """
    libc = ctypes.CDLL(None)
    parent = os.getpid()

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return prepare


def reap(process: int) -> None:
    """Reaps a command that has ended.

    `time` then counts the command's CPU time as that of this process.
    """
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)


def end_like(status: int) -> int:
    """Returns the exit code to end with.

    If a signal killed the command, the same signal kills this process, and the call does not return.
    """
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def describe_end(status: int) -> str:
    """Describes how a command ended by its wait status; '' if it succeeded."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    code = os.waitstatus_to_exitcode(status)
    return f"ended with exit code {code}" if code else ""


def print_line(line: str) -> None:
    """Prints a line to stderr; ignores a closed stderr."""
    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)


def _wait_status(process: int) -> int | None:
    """Returns the wait status of the command if it has ended.

    Orphans are reaped too: as the first process of a container, this process is their parent.
    """
    while child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        if child.si_pid == process:
            return child.si_status << 8 if child.si_code == os.CLD_EXITED else child.si_status
        os.waitpid(child.si_pid, 0)
    return None
