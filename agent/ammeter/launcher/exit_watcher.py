"""Watches the processes of a run end, and records in their journals how they ended.

No other process can know this. A process that has ended stays a zombie until its parent reaps it; until then the kernel
reports its exit status to any process of the same user. A pidfd signals the end, also of processes that are not
children of this one.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ammeter import journal
from ammeter.environment import identity
from ammeter.environment.cgroups import groups_of, memory_limit, oom_kills
from ammeter.journal import Ending
from ammeter.launcher.termination_source import ENDING_SIGNALS, SignalRecord

DISCOVER_SECONDS = 0.1
"""Interval between two searches for new streams."""

SIGNAL_WAIT_SECONDS = 0.1
"""How long the watcher waits, after SIGTERM or SIGKILL ended a process, until `ammeter run` has received the signal
too."""


@dataclass
class WatchedStreams:
    """The streams of the run on this host, and those of them whose process died."""

    streams: list[Path] = field(default_factory=list)
    died: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class MemoryGroup:
    """The control group of a training process, with its initial count of OOM kills."""

    groups: str
    initial_oom_kills: int | None

    def has_new_kills(self) -> bool:
        """Returns whether the kernel has killed a process in the group since then."""
        return self.initial_oom_kills is not None and (oom_kills(self.groups) or 0) > self.initial_oom_kills


class ExitWatcher:
    """A thread of `ammeter run`, never of a training program.

    run: the run id; None if only the ranks will know it.
    """

    def __init__(self, dir: Path, run: str | None) -> None:
        self.watched = WatchedStreams()
        self._folder = dir / run if run else None
        self._host = identity.host()
        self._lock: int | None = None
        self._stopping = False
        self._began = time.time_ns()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._pids: dict[int, tuple[int, Path]] = {}
        self._known: set[Path] = set()
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._own_memory = _memory_of(None)
        self._memory: dict[Path, MemoryGroup] = {}
        self._signals = SignalRecord()
        self._environment: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None

    def start(self, signals: SignalRecord, environment: Mapping[str, str]) -> None:
        """Starts to watch.

        A run's folder that cannot be created is no error: no process can write there.

        signals: the signals that `ammeter run` receives. environment: that of the command.
        """
        self._signals, self._environment = signals, environment
        if self._folder is None:
            return
        with suppress(OSError):
            journal.private_folder(journal.private_folder(self._folder.parent) / self._folder.name)
            self._lock = journal.lock(journal.exit_watcher_path(self._folder))
            self._thread = threading.Thread(target=self._watch, name="ammeter-exit-watcher", daemon=True)
            self._thread.start()

    def stop(self, status: int) -> WatchedStreams:
        """Ends the remaining streams and releases all resources.

        status: the wait status with which the command ended.
        """
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        with suppress(OSError):
            self._end_remaining(status)
        for file in (self._wake, *self._pids):
            os.close(file)
        if self._lock is not None and self._folder is not None:
            with suppress(OSError):
                journal.exit_watcher_path(self._folder).unlink()
                self._folder.rmdir()  # fails, as intended, if a stream was written
            journal.unlock(self._lock)
        return self.watched

    def _watch(self) -> None:
        last_pass = False
        while not last_pass:
            last_pass = self._stopping  # one more pass afterwards also finds processes that ended with the command
            with suppress(OSError):
                self._discover()
                for file, _ in self._poll.poll(DISCOVER_SECONDS * 1000):
                    if file != self._wake:
                        self._handle_exit(file)

    def _discover(self) -> None:
        """Starts to watch streams that have begun since the last search."""
        for stream in journal.streams(self._folder) if self._folder else ():
            hello = None if stream in self._known else journal.schema_before(stream, 0)
            if hello is None:
                continue
            self._known.add(stream)
            if hello.host == self._host and hello.started >= self._began and hello.role == "rank":
                self.watched.streams.append(stream)
                self._register(hello.pid, stream)

    def _register(self, process: int, stream: Path) -> None:
        try:
            file = os.pidfd_open(process)
        except OSError:  # it has ended, or is in another PID namespace
            return
        self._memory[stream] = _memory_of(process)
        self._pids[file] = process, stream
        self._poll.register(file, select.POLLIN)

    def _handle_exit(self, file: int) -> None:
        process, stream = self._pids.pop(file)
        self._poll.unregister(file)
        os.close(file)
        status = _wait_status(process)
        if status is not None:
            self._end_stream(stream, status)

    def _end_remaining(self, status: int) -> None:
        """Ends streams whose process's end was not observed, as if it ended like the command."""
        self._discover()
        for stream in self.watched.streams:
            self._end_stream(stream, _shell_status(status))

    def _end_stream(self, stream: Path, status: int | None) -> None:
        needs_no_cause = journal.is_alive(stream) or journal.ended(stream)
        ending = journal.UNKNOWN_ENDING if needs_no_cause else self._ending(stream, status)
        if journal.end_stream(stream, time.time_ns(), ending):
            self.watched.died.append(stream)

    def _ending(self, stream: Path, status: int | None) -> Ending:
        if status is None:
            return journal.UNKNOWN_ENDING
        description, memory = _describe(status), self._memory.get(stream, self._own_memory)
        number = _signal_of(status)
        if number == signal.SIGKILL and memory.has_new_kills():
            return Ending(f"{description} from the kernel's OOM killer", "oom-killer", memory_limit(memory.groups))
        if number not in ENDING_SIGNALS:
            return Ending(description)
        self._await_signal()
        sigterm = self._signals.last_sigterm()
        ended_by = self._signals.ended_by(self._environment, time.time())
        if sigterm is None and (ended_by == "sigterm" or number == signal.SIGKILL):
            return Ending(description)
        return Ending(self._signals.describe(number == signal.SIGKILL), ended_by)

    def _await_signal(self) -> None:
        deadline = time.monotonic() + SIGNAL_WAIT_SECONDS
        while self._signals.last_sigterm() is None and not self._stopping and time.monotonic() < deadline:
            time.sleep(0.005)


def _memory_of(process: int | None) -> MemoryGroup:
    groups = groups_of(process)
    return MemoryGroup(groups, oom_kills(groups))


def _wait_status(process: int) -> int | None:
    """Returns the wait status of a process that has ended, field 52 of proc(5).

    Returns None if its parent has reaped it.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[49]) if fields[0] in "ZX" else None


def _shell_status(status: int) -> int | None:
    """Decodes a shell's exit code 128 + n for a command that signal n killed.

    Returns None for a status that shows no signal.
    """
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return status
    return code - 128 if 128 < code < 128 + signal.NSIG else None


def _signal_of(status: int) -> int | None:
    """Returns the signal that ended a process, also one that its exit code reports."""
    code = os.waitstatus_to_exitcode(status)
    return -code if code < 0 else code - 128 if code in (128 + signal.SIGTERM, 128 + signal.SIGKILL) else None


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
