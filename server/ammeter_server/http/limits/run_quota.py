"""How many runs and projects there may be. Counted now and then by the sweeper, so that no sender waits for it, and in
between by what this process lets in."""

from __future__ import annotations

from collections.abc import Mapping

from ammeter_server.http import limits

MAX_PROJECTS = 1_000
"""Each is a label of the fleet's counters, which never go."""

MAX_RUNS = 100_000
"""Of one project. The list of runs and its filters are made for so many."""

COUNTED = 30 * 10**9
"""ns between counts; who opens runs without end at several collectors has them counted a little late."""


class Quota:
    """What one collector process knows: runs by project, as last counted and let in since."""

    def __init__(self) -> None:
        self._runs: dict[str, int] = {}
        self._counted = 0

    def is_due(self, now: int) -> bool:
        return now - self._counted >= COUNTED

    def count(self, runs: Mapping[str, int], now: int) -> None:
        """From now on these are the runs there are."""
        self._runs, self._counted = dict(runs), now

    def check(self, project: str) -> None:
        """Lets a new run of this project in. Raises a 403 problem, on which a shipper keeps its data, where it may not
        be."""
        there = self._runs.get(project, 0)
        if there >= MAX_RUNS:
            said = f"project {project[:80]!r} has {there} runs; the limit is {MAX_RUNS}: delete some"
            raise limits.over("runs", 403, said, most=MAX_RUNS)
        if not there and len(self._runs) >= MAX_PROJECTS:
            said = f"there are {len(self._runs)} projects, which is the limit: use one of them"
            raise limits.over("projects", 403, said, most=MAX_PROJECTS)
        self._runs[project] = there + 1
