"""Selects the runs of a group: by id, by name, or by a tag such as recipe=bf16."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import runs as query
from ammeter_server.runs import run_ids


class SelectionError(ValueError):
    """A selector means no run; the message has the remedy."""


def select_runs(connection: Connection, selectors: Sequence[str], project: str | None) -> list[Row[Any]]:
    """Returns the runs that the selectors mean, without repetitions.

    Args:
        project: the project of names, tags and external ids. Without it, only ids select runs.

    Raises:
        SelectionError: a selector means no run.
    """
    found: dict[str, Row[Any]] = {}
    for selector in selectors:
        rows: Sequence[Row[Any]] = _by_id(connection, selector, project)
        if not rows and project is not None:
            rows = query.named(connection, project, selector) or _tagged(connection, selector, project)
        if not rows:
            where = (
                f"in project {project[:80]!r}" if project is not None else "with this id; names and tags need `project`"
            )
            raise SelectionError(f"there is no run {selector[:80]!r} {where}")
        found |= {row.id: row for row in rows}
    return list(found.values())


def _by_id(connection: Connection, selector: str, project: str | None) -> list[Row[Any]]:
    run = selector if project is None else run_ids.find(connection, project, selector)
    row = query.one(connection, run) if run else None
    return [row] if row is not None else []


def _tagged(connection: Connection, selector: str, project: str) -> list[Row[Any]]:
    key, equals, value = selector.partition("=")
    if not equals:
        return []
    return [row for row in query.of_project(connection, project) if str(row.tags.get(key)) == value]
