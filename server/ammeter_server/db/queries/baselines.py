"""Queries of the runs that are pinned as baselines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.tables import baselines, runs


def pin(connection: Connection, project: str, name: str, run: str, actor: str, now: int) -> None:
    """Pins a run, in place of the one that was pinned before. name: empty for the project."""
    values = {"run": run, "pinned": now, "actor": actor}
    connection.execute(insert_or_ignore(connection, baselines).values(project=project, name=name, **values))
    here = baselines.c.project == project, baselines.c.name == name
    connection.execute(baselines.update().where(*here).values(**values))


def unpin(connection: Connection, project: str, name: str, run: str) -> bool:
    """Returns whether this run was pinned there."""
    here = baselines.c.project == project, baselines.c.name == name, baselines.c.run == run
    return bool(connection.execute(baselines.delete().where(*here)).rowcount)


def forget(connection: Connection, run: str) -> None:
    """Removes a deleted run's pins."""
    connection.execute(baselines.delete().where(baselines.c.run == run))


def pinned(connection: Connection, project: str, name: str) -> str | None:
    """Returns the id of the run that is pinned there."""
    query = select(baselines.c.run).where(baselines.c.project == project, baselines.c.name == name)
    return connection.execute(query).scalar_one_or_none()


def listed(connection: Connection, project: str | None) -> Sequence[Row[Any]]:
    """Returns the pins of a project or of all, each with the name of its run, None for a run that is gone."""
    query: Select[Any] = select(baselines, runs.c.name.label("run_name"))
    query = query.join(runs, runs.c.id == baselines.c.run, isouter=True)
    if project is not None:
        query = query.where(baselines.c.project == project)
    return connection.execute(query.order_by(baselines.c.project, baselines.c.name)).all()
