"""The baseline of a run: the one that it names, else the one that is pinned for its name, else for its project."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import baselines, judge, runs

Source = Literal["run", "name", "project"]

OF_PROJECT = ""
"""The name under which the baseline of a whole project is pinned."""


@dataclass(frozen=True)
class Baseline:
    """source: what leads to it: the run's own tag or config, or a pin for its name or project."""

    row: Row[Any]
    source: Source


def baseline_name(run: Row[Any]) -> str | None:
    """The name of the run's baseline, from its tags or its config."""
    name = run.tags.get("baseline") or run.config.get("baseline")
    return str(name) if name else None


def find_baseline(connection: Connection, run: Row[Any]) -> Baseline | None:
    """Returns the baseline of a run; None if it has none, or is the pinned baseline itself."""
    named = baseline_name(run)
    if named:
        row = judge.baseline(connection, run, named)
        return Baseline(row, "run") if row is not None else None
    places: list[tuple[Source, str]] = [("name", run.name)] if run.name else []
    for source, name in [*places, ("project", OF_PROJECT)]:
        pinned = baselines.pinned(connection, run.project, name)
        row = runs.one(connection, pinned) if pinned else None
        if row is not None:
            return None if row.id == run.id else Baseline(row, source)
    return None
