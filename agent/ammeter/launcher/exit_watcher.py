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
from ammeter.launcher.termination_source import ENDS, Asked

LOOK_SECONDS = 0.1
"""Interval between two searches for new streams."""

HEAR_SECONDS = 0.1
"""How long the watcher waits, after SIGTERM or SIGKILL ended a process, until `ammeter run` has received the signal
too."""


@dataclass
class Seen:
    """The streams of the run on this host, and those of them whose process died."""

    streams: list[Path] = field(default_factory=list)
    died: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Memory:
    """The control group of a training process, with its initial count of OOM kills."""

    groups: str
    oom_kills: int | None

    def killed(self) -> bool:
        """Returns whether the kernel has killed a process in the group since then."""
        return self.oom_kills is not None and (oom_kills(self.groups) or 0) > self.oom_kills


class Witness:
    """A thread of `ammeter run`, never of a training program.

    run: the run id; None if only the ranks will know it.
    """

    def __init__(self, dir: Path, run: str | None) -> None:
        self.seen = Seen()
        self._folder = dir / run if run else None
        self._host = identity.host()
        self._held: int | None = None
        self._over = False
        self._began = time.time_ns()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._pids: dict[int, tuple[int, Path]] = {}
        self._known: set[Path] = set()
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._own = _memory_of(None)
        self._memory: dict[Path, Memory] = {}
        self._asked = Asked()
        self._environment: Mapping[str, str] = {}
        self._thread: threading.Thread | None = None

    def start(self, asked: Asked, environment: Mapping[str, str]) -> None:
        """Starts to watch.

        A run's folder that cannot be created is no error: no process can write there.

        asked: records the signals that end the command. environment: that of the command.
        """
        self._asked, self._environment = asked, environment
        if self._folder is None:
            return
        with suppress(OSError):
            journal.private_folder(journal.private_folder(self._folder.parent) / self._folder.name)
            self._held = journal.lock(journal.witness_path(self._folder))
            self._thread = threading.Thread(target=self._look_on, name="ammeter-witness", daemon=True)
            self._thread.start()

    def stop(self, status: int) -> Seen:
        """Settles the remaining streams and releases all resources.

        status: the wait status with which the command ended.
        """
        self._over = True
        os.eventfd_write(self._wake, 1)
        if self._thread is not None:
            self._thread.join()
        with suppress(OSError):
            self._settle_the_rest(status)
        for file in (self._wake, *self._pids):
            os.close(file)
        if self._held is not None and self._folder is not None:
            with suppress(OSError):
                journal.witness_path(self._folder).unlink()
                self._folder.rmdir()  # fails, as intended, if a stream was written
            journal.unlock(self._held)
        return self.seen

    def _look_on(self) -> None:
        over = False
        while not over:
            over = self._over  # one more pass afterwards also finds processes that ended with the command
            with suppress(OSError):
                self._take_on()
                for file, _ in self._poll.poll(LOOK_SECONDS * 1000):
                    if file != self._wake:
                        self._see_the_end(file)

    def _take_on(self) -> None:
        """Starts to watch streams that have begun since the last search."""
        for stream in journal.streams(self._folder) if self._folder else ():
            first = None if stream in self._known else journal.schema_before(stream, 0)
            if first is None:
                continue
            self._known.add(stream)
            if first.host == self._host and first.started >= self._began and first.role == "rank":
                self.seen.streams.append(stream)
                self._watch(first.pid, stream)

    def _watch(self, process: int, stream: Path) -> None:
        try:
            file = os.pidfd_open(process)
        except OSError:  # it has ended, or is in another PID namespace
            return
        self._memory[stream] = _memory_of(process)
        self._pids[file] = process, stream
        self._poll.register(file, select.POLLIN)

    def _see_the_end(self, file: int) -> None:
        process, stream = self._pids.pop(file)
        self._poll.unregister(file)
        os.close(file)
        status = _wait_status(process)
        if status is not None:
            self._settle(stream, status)

    def _settle_the_rest(self, status: int) -> None:
        """Settles streams whose process's end was not observed, as if it ended like the command."""
        self._take_on()
        for stream in self.seen.streams:
            self._settle(stream, _as_shells_say_it(status))

    def _settle(self, stream: Path, status: int | None) -> None:
        said = journal.is_alive(stream) or journal.ended(stream)
        if journal.settle(stream, time.time_ns(), journal.UNKNOWN if said else self._ending(stream, status)):
            self.seen.died.append(stream)

    def _ending(self, stream: Path, status: int | None) -> Ending:
        if status is None:
            return journal.UNKNOWN
        how, memory = _how(status), self._memory.get(stream, self._own)
        number = _signal_of(status)
        if number == signal.SIGKILL and memory.killed():
            return Ending(f"{how}; the kernel's OOM killer did it", "oom-killer", memory_limit(memory.groups))
        if number not in ENDS:
            return Ending(how)
        self._hear()
        told = self._asked.last()
        by = self._asked.by(self._environment, time.time())
        if (told is None and by == "sigterm") or (told is None and number == signal.SIGKILL):
            return Ending(how)
        return Ending(self._asked.words(number == signal.SIGKILL), by)

    def _hear(self) -> None:
        deadline = time.monotonic() + HEAR_SECONDS
        while self._asked.last() is None and not self._over and time.monotonic() < deadline:
            time.sleep(0.005)


def _memory_of(process: int | None) -> Memory:
    groups = groups_of(process)
    return Memory(groups, oom_kills(groups))


def _wait_status(process: int) -> int | None:
    """Returns the wait status of a process that has ended, field 52 of proc(5).

    Returns None if its parent has reaped it.
    """
    try:
        said = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = said.rpartition(")")[2].split()
    return int(fields[49]) if fields[0] in "ZX" else None


def _as_shells_say_it(status: int) -> int | None:
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


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
