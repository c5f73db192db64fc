"""Finds out how a writer ended, in a process that is not its parent.

Such a process gets no exit status, but two sources remain: the kernel counts its OOM kills in the writer's control
group, and the end of a job or pod sends SIGTERM to this process as well.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ammeter import journal
from ammeter.environment import identity
from ammeter.environment.cgroups import groups_of, memory_limit, oom_kills
from ammeter.journal import Ending

COUNT_SECONDS = 1.0
"""Interval between two readings of the kernel's count."""

DYING_SECONDS = 30.0
"""Longest time between the OOM kill of a writer and its end: the kernel counts the kill at once, and the process exists
until its memory is freed. An older kill was that of another process, such as a DataLoader worker."""

TOGETHER_SECONDS = 10.0
"""A writer that ends within this time after SIGTERM reached this process was ended together with it."""

SIGTERM_WAIT_SECONDS = 0.5
"""How long the stream of a dead writer waits for a SIGTERM: the processes of a job are signalled one by one."""

EXIT_WATCHER_SECONDS = 2.0
"""How long a dead writer's stream is left to `ammeter run`, which knows what killed the writer and records it."""


@dataclass
class _Group:
    """The control group of a writer.

    oom_kills: count at the last reading. read_at, increased_at: monotonic seconds of the last reading, and of the last
    one with an increase.
    """

    groups: str
    limit_bytes: int
    oom_kills: int | None
    read_at: float
    increased_at: float | None = None


class DeathCauses:
    """Causes of death of the writers on this host.

    Call observe() while a writer lives, ending() once it is gone.
    """

    def __init__(self) -> None:
        self._host = identity.host()
        self._groups: dict[Path, _Group | None] = {}
        self._terminated_at: float | None = None

    def note_termination(self) -> None:
        """Records that SIGTERM has reached this process."""
        self._terminated_at = self._terminated_at or time.monotonic()

    def observe(self, stream: Path) -> None:
        """Reads the OOM count of a writer at most once a second; call it often."""
        now = time.monotonic()
        if stream not in self._groups:
            hello = journal.schema_before(stream, 0)
            if hello is None:
                return
            is_local_rank = hello.host == self._host and hello.role == "rank"
            groups = groups_of(hello.pid) if is_local_rank else ""
            known = bool(groups) and journal.is_alive(stream)  # otherwise the process id may have been reused
            self._groups[stream] = _Group(groups, memory_limit(groups), oom_kills(groups), now) if known else None
        group = self._groups[stream]
        if group is not None and now - group.read_at >= COUNT_SECONDS:
            _read_count(group, now)

    def awaits_sigterm(self, since: float) -> bool:
        """Returns whether a SIGTERM that ended a writer at `since` may still reach this process."""
        return self._terminated_at is None and time.monotonic() - since < SIGTERM_WAIT_SECONDS

    def ending(self, stream: Path) -> Ending:
        """Returns the known cause of the end of a writer that is gone."""
        group, now = self._groups.get(stream), time.monotonic()
        if group is not None:
            _read_count(group, now)
            if group.increased_at is not None and now - group.increased_at <= DYING_SECONDS:
                return Ending("killed by the kernel's OOM killer", "oom-killer", group.limit_bytes)
        if self._terminated_at is not None and now - self._terminated_at <= TOGETHER_SECONDS:
            return Ending("SIGTERM, which also reached the shipper", "job")
        return journal.UNKNOWN_ENDING


def left_to_exit_watcher(stream: Path, dead_since: float, deaths: DeathCauses | None) -> bool:
    """Returns whether an exit watcher or a SIGTERM may still explain the death of a writer.

    dead_since: monotonic seconds at which the writer's death was observed.
    """
    waited = time.monotonic() - dead_since >= EXIT_WATCHER_SECONDS
    sigterm_may_come = deaths is not None and deaths.awaits_sigterm(dead_since)
    return not waited and (sigterm_may_come or journal.has_exit_watcher(stream.parent)) and not journal.ended(stream)


def _read_count(group: _Group, now: float) -> None:
    group.read_at = now
    count = oom_kills(group.groups)
    if count is not None and group.oom_kills is not None and count > group.oom_kills:
        group.increased_at = now
    group.oom_kills = count if count is not None else group.oom_kills
