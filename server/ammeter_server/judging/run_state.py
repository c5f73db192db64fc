"""The state of a run: running, ended or lost, by the last attempts of its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ammeter_server.db import Row

FINAL_STATES = ("ended", "lost")

LATE_RANKS_NS = 30 * 10**9
"""A run whose other ranks have ended waits this long for ranks that never sent anything."""

RESTART_NS = 120 * 10**9
"""The time that a launcher may take to restart a process that died, until it has loaded torch and the model and calls
watch(). No notification is sent before."""

MAX_RESTART_DIGITS = 6
"""A number of restarts with more digits is ignored."""


def run_end(streams: Sequence[Row[Any]], silent: Collection[str], world_size: int, now: int) -> tuple[str, int | None]:
    """Computes a run's state and when it ended.

    A run ends when the last attempt of each rank has ended, and is lost when one of them wrote no final record or its
    host is silent. It waits LATE_RANKS_NS for ranks that never sent anything. A rank that returns makes it running
    again.

    Args:
        streams: All streams of the run.
        silent: Ids of streams that are reported as lost.
        world_size: The expected number of ranks.
        now: In ns.

    Returns:
        The state, and the time of the end by the clocks of the training hosts, None while the run goes on. A host's
        clock may be ahead, so the time is never after the last batch.
    """
    lives = last_lives(streams)
    over = [life for life in lives if life.bye_reason is not None or life.id in silent]
    quiet = all(life.last_seen < now - LATE_RANKS_NS for life in lives)
    if not lives or len(over) < len(lives) or (len(lives) < world_size and not quiet):
        return "running", None
    ended = max(min(life.bye.get("time") or life.last_step_time or life.last_seen, life.last_seen) for life in lives)
    return ("lost" if any(life.bye_reason in (None, "lost") for life in lives) else "ended"), ended


def restarting(streams: Sequence[Row[Any]], environment: Mapping[str, Any] | None, now: int) -> frozenset[str]:
    """Ids of streams whose process has just died and is restarted by its launcher, with all other ranks."""
    limit = str((environment or {}).get("max_restarts", ""))
    if not limit.isdecimal() or len(limit) >= MAX_RESTART_DIGITS:
        return frozenset()
    lives = Counter(stream.rank for stream in streams if stream.role == "rank")
    if max(lives.values(), default=0) > int(limit):
        return frozenset()
    died = [
        life
        for life in last_lives(streams)
        if life.bye_reason in ("lost", "signal") and life.last_seen > now - RESTART_NS
    ]
    return frozenset(life.id for life in died)


def last_lives(streams: Sequence[Row[Any]]) -> list[Row[Any]]:
    """The newest stream of each rank that has sent a hello."""
    begun = [stream for stream in streams if stream.role == "rank" and stream.schema is not None]
    return list(
        {stream.rank: stream for stream in sorted(begun, key=lambda stream: (stream.started, stream.id))}.values()
    )


def continued(streams: Sequence[Row[Any]]) -> frozenset[str]:
    """Ids of streams whose rank has a newer attempt."""
    current = {life.id for life in last_lives(streams)}
    return frozenset(stream.id for stream in streams if stream.role == "rank" and stream.id not in current)
