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

LOOK_SECONDS = 1.0
"""Interval between two readings of the kernel's count."""

DYING_SECONDS = 30.0
"""Longest time between the OOM kill of a writer and its end: the kernel counts the kill at once, and the process exists
until its memory is freed. An older kill was that of another process, such as a DataLoader worker."""

TOGETHER_SECONDS = 10.0
"""A writer that ends within this time after SIGTERM reached this process was ended together with it."""

WAIT_SECONDS = 0.5
"""How long the stream of a dead writer waits for a SIGTERM: the processes of a job are signalled one by one."""


@dataclass
class _Group:
    """The control group of a writer.

    oom_kills: count at the last reading. rose: monotonic seconds at which an increase was seen.
    """

    groups: str
    limit: int
    oom_kills: int | None
    looked: float
    rose: float | None = None


class Deaths:
    """Causes of death of the writers on this host.

    Call look() while a writer lives, ending() once it is gone.
    """

    def __init__(self) -> None:
        self._host = identity.host()
        self._groups: dict[Path, _Group | None] = {}
        self._terminated: float | None = None

    def note_termination(self) -> None:
        """Records that SIGTERM has reached this process."""
        self._terminated = self._terminated or time.monotonic()

    def look(self, stream: Path) -> None:
        """Reads the OOM count of a writer at most once a second; call it often."""
        now = time.monotonic()
        if stream not in self._groups:
            first = journal.schema_before(stream, 0)
            if first is None:
                return
            here = first.host == self._host and first.role == "rank"
            groups = groups_of(first.pid) if here else ""
            known = bool(groups) and journal.is_alive(stream)  # otherwise the process id may have been reused
            self._groups[stream] = _Group(groups, memory_limit(groups), oom_kills(groups), now) if known else None
        group = self._groups[stream]
        if group is not None and now - group.looked >= LOOK_SECONDS:
            _count(group, now)

    def awaits(self, since: float) -> bool:
        """Returns whether a SIGTERM that ended a writer at `since` may still reach this process."""
        return self._terminated is None and time.monotonic() - since < WAIT_SECONDS

    def ending(self, stream: Path) -> Ending:
        """Returns the known cause of the end of a writer that is gone."""
        group, now = self._groups.get(stream), time.monotonic()
        if group is not None:
            _count(group, now)
            if group.rose is not None and now - group.rose <= DYING_SECONDS:
                return Ending("the kernel's OOM killer did it", "oom-killer", group.limit)
        if self._terminated is not None and now - self._terminated <= TOGETHER_SECONDS:
            return Ending("SIGTERM reached the process beside it as well", "job")
        return journal.UNKNOWN


def _count(group: _Group, now: float) -> None:
    group.looked = now
    count = oom_kills(group.groups)
    if count is not None and group.oom_kills is not None and count > group.oom_kills:
        group.rose = now
    group.oom_kills = count if count is not None else group.oom_kills
