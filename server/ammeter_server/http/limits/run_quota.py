"""Limits the number of runs and projects.

The sweeper counts them at intervals, so that ingest never waits for a count. In between, this process counts the runs
that it admits.
"""

from __future__ import annotations

from collections.abc import Mapping

from ammeter_server.http import limits

MAX_PROJECTS = 1_000
"""Each project is a label of the fleet counters, which are never deleted."""

MAX_RUNS = 100_000
"""Runs of one project. The list of runs and its filters are designed for this number."""

COUNTED = 30 * 10**9
"""Nanoseconds between counts. Runs that are opened at several collectors are counted with this delay."""


class Quota:
    """Runs by project, as last counted, plus those that this process has admitted since."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._counted = 0

    def is_due(self, now: int) -> bool:
        return now - self._counted >= COUNTED

    def count(self, runs: Mapping[str, int], now: int) -> None:
        """Replaces the counts."""
        self._runs, self._counted = dict(runs), now

    def check(self, project: str) -> None:
        """Admits a new run of a project.

        Raises:
            Problem: 403 if a limit is reached; the shipper then keeps its data.
        """
        there = self._runs.get(project, 0)
        if there >= MAX_RUNS:
            said = f"project {project[:80]!r} has {there} runs; the limit is {MAX_RUNS}: delete some"
            raise limits.over("runs", 403, said, most=MAX_RUNS)
        if not there and len(self._runs) >= MAX_PROJECTS:
            said = f"there are {len(self._runs)} projects, which is the limit: use one of them"
            raise limits.over("projects", 403, said, most=MAX_PROJECTS)
        self._runs[project] = there + 1
