"""Looks on while the processes of a run end, and writes into their journals what no other process can know: how.

A process that has ended stays a zombie until its parent asks for it; until then the kernel tells its exit status to
any process of the same user. A pidfd says when to look, for processes that are no children of ours as well.
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
"""Between two looks for streams that have begun."""

HEAR_SECONDS = 0.1
"""How long a process that SIGTERM or SIGKILL ended waits for `ammeter run` to have heard the signal as well."""


@dataclass
class Seen:
    """The streams of the run on this host, and those of them whose process died."""

    streams: list[Path] = field(default_factory=list)
    died: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Memory:
    """Of a process that trains: its control group, and how often the kernel had killed in it before."""

    groups: str
    oom_kills: int | None

    def killed(self) -> bool:
        """Whether the kernel has killed in it since."""
        return self.oom_kills is not None and (oom_kills(self.groups) or 0) > self.oom_kills


class Witness:
    """A thread of `ammeter run`, never of a program that trains. run: None when only the ranks will know its id."""

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
        """Begins to look. Where the run's folder cannot be made, nothing can be watched either: no error.

        asked: what tells the command to end, as it comes. environment: of the command.
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
        """The command has ended with this wait status: what is left is settled, and nothing is left of us."""
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
                self._folder.rmdir()  # which fails, as it should, for one in which something was written
            journal.unlock(self._held)
        return self.seen

    def _look_on(self) -> None:
        over = False
        while not over:
            over = self._over  # and once more after it: who ended with the command is seen, too
            with suppress(OSError):
                self._take_on()
                for file, _ in self._poll.poll(LOOK_SECONDS * 1000):
                    if file != self._wake:
                        self._see_the_end(file)

    def _take_on(self) -> None:
        """Streams that have begun since the last look."""
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
        except OSError:  # it has ended, or lives in a namespace of its own
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
        """What died unseen did so as the command did, as far as one can tell."""
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
    """The status of a process that has ended and was not asked for yet, field 52 of proc(5); None when it was."""
    try:
        said = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = said.rpartition(")")[2].split()
    return int(fields[49]) if fields[0] in "ZX" else None


def _as_shells_say_it(status: int) -> int | None:
    """A shell ends with 128 + n when signal n killed what it ran. None for a status that says nothing."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return status
    return code - 128 if 128 < code < 128 + signal.NSIG else None


def _signal_of(status: int) -> int | None:
    """The signal that ended a process, also one that says so by its exit code."""
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
