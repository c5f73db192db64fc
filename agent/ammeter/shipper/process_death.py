"""What a process beside the writers can know of how one ended, where nobody waited for it.

It sees no exit status. Two things tell something all the same: the kernel counts whom it kills for want of memory in
the writer's control group, and a job or pod that is ended sends SIGTERM to this process as well.
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
"""Between two looks at what the kernel has counted."""

DYING_SECONDS = 30.0
"""A process is counted when it is killed, and is gone once its memory is freed. A kill before that was another's, such
as a DataLoader worker's."""

TOGETHER_SECONDS = 10.0
"""A writer that ends so soon after SIGTERM has reached this process was ended with it."""

WAIT_SECONDS = 0.5
"""How long a dead writer's stream waits for a SIGTERM: who ends a job reaches its processes one by one."""


@dataclass
class _Group:
    """A writer's control group. oom_kills: at the last look. rose: monotonic seconds when it was seen to rise."""

    groups: str
    limit: int
    oom_kills: int | None
    looked: float
    rose: float | None = None


class Deaths:
    """Of the writers on this host. look() while one lives, ending() once it is gone."""

    def __init__(self) -> None:
        self._host = identity.host()
        self._groups: dict[Path, _Group | None] = {}
        self._terminated: float | None = None

    def note_termination(self) -> None:
        """SIGTERM has reached this process."""
        self._terminated = self._terminated or time.monotonic()

    def look(self, stream: Path) -> None:
        """Call it often: it reads a small file once a second."""
        now = time.monotonic()
        if stream not in self._groups:
            first = journal.schema_before(stream, 0)
            if first is None:
                return
            here = first.host == self._host and first.role == "rank"
            groups = groups_of(first.pid) if here else ""
            known = bool(groups) and journal.is_alive(stream)  # else the number may be another's by now
            self._groups[stream] = _Group(groups, memory_limit(groups), oom_kills(groups), now) if known else None
        group = self._groups[stream]
        if group is not None and now - group.looked >= LOOK_SECONDS:
            _count(group, now)

    def awaits(self, since: float) -> bool:
        """Whether a SIGTERM may still come for this process that has ended a writer since then."""
        return self._terminated is None and time.monotonic() - since < WAIT_SECONDS

    def ending(self, stream: Path) -> Ending:
        """What is known of the end of a writer that is gone."""
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
