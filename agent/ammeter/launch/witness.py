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
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ammeter import identity, journal
from ammeter.launch.memory import oom_kills

LOOK_SECONDS = 0.1
"""Between two looks for streams that have begun."""


@dataclass
class Seen:
    """The streams of the run on this host, and those of them whose process died."""

    streams: list[Path] = field(default_factory=list)
    died: list[Path] = field(default_factory=list)


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
        self._oom_kills = oom_kills()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to look. Where the run's folder cannot be made, nothing can be watched either: no error."""
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
        self._pids[file] = process, stream
        self._poll.register(file, select.POLLIN)

    def _see_the_end(self, file: int) -> None:
        process, stream = self._pids.pop(file)
        self._poll.unregister(file)
        os.close(file)
        how = _how(_wait_status(process))
        if how:
            self._settle(stream, how)

    def _settle_the_rest(self, status: int) -> None:
        """What died unseen did so as the command did, as far as one can tell."""
        self._take_on()
        for stream in self.seen.streams:
            self._settle(stream, _how(_as_shells_say_it(status)))

    def _settle(self, stream: Path, how: str) -> None:
        if "SIGKILL" in how and self._oom_kills is not None and (oom_kills() or 0) > self._oom_kills:
            how += "; the kernel's OOM killer did it"
        if journal.settle(stream, time.time_ns(), how):
            self.seen.died.append(stream)


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


def _how(status: int | None) -> str:
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        return f"killed by {_name(os.WTERMSIG(status))}"
    return f"ended with exit code {os.waitstatus_to_exitcode(status)}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
