"""Limits the number of runs and projects.

The judge's worker counts them at intervals, so that ingest never waits for a count. In between, this process counts
the runs that it admits.
"""

from __future__ import annotations

from collections.abc import Mapping

from ammeter_server.http import limits

MAX_PROJECTS = 1_000
"""Each project is a label of the fleet counters, which are never deleted."""

MAX_RUNS = 100_000
"""Runs of one project. The list of runs and its filters are designed for this number."""

COUNT_INTERVAL_NS = 30 * 10**9
"""Between counts. Runs that are opened at several collectors are counted with this delay."""


class Quota:
    """Runs by project, as last counted, plus those that this process has admitted since."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._admitted: set[str] = set()
        """Projects of runs admitted since the last count, which may have begun before they were stored."""
        self._counted = 0

    def is_due(self, now: int) -> bool:
        return now - self._counted >= COUNT_INTERVAL_NS

    def count(self, runs: Mapping[str, int], now: int) -> None:
        """Replaces the counts."""
        self._runs, self._counted = {**dict.fromkeys(self._admitted, 1), **runs}, now
        self._admitted.clear()

    def check(self, project: str) -> None:
        """Admits a new run of a project.

        Raises:
            Problem: 403 if a limit is reached; the shipper then keeps its data.
        """
        count = self._runs.get(project, 0)
        if count >= MAX_RUNS:
            detail = f"project {project[:80]!r} has {count} runs; the limit is {MAX_RUNS}: delete some"
            raise limits.over("runs", 403, detail, most=MAX_RUNS)
        if not count and len(self._runs) >= MAX_PROJECTS:
            detail = f"there are {len(self._runs)} projects, which is the limit: use one of them"
            raise limits.over("projects", 403, detail, most=MAX_PROJECTS)
        self._runs[project] = count + 1
        self._admitted.add(project)
