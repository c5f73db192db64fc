"""What the collector executes on a connection, and how many shards Citus plans it for."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from sqlalchemy import Engine, event

from tests.server.citus_cluster import Cluster

PLANNED = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
"""The beginning of a statement that has a plan."""

seen_by_cursors: list[tuple[str, Any]] = []
"""Text and values of what was executed, in order."""


class Recorded(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **how: Any) -> Recorded:
        note(query, params)
        return super().execute(query, params, **how)

    def executemany(self, query: Any, params_seq: Any, **how: Any) -> None:
        several = list(params_seq)
        note(query, several[0])
        super().executemany(query, several, **how)


class RecordedOnServer(psycopg.ServerCursor[Any]):
    """The cursor of long lists."""

    def execute(self, query: Any, params: Any = None, **how: Any) -> RecordedOnServer:
        note(query, params)
        return super().execute(query, params, **how)


def note(query: str, params: Any) -> None:
    if not threading.current_thread().name.startswith("ammeter-") and re.match(PLANNED, query):
        seen_by_cursors.append((query, params))


@contextmanager
def recorded() -> Iterator[list[tuple[str, Any]]]:
    """What is executed on connections that are opened meanwhile, but by the collector's own workers."""

    def prepare(connection: Any, _: Any) -> None:
        if isinstance(connection, psycopg.Connection):
            connection.cursor_factory = Recorded
            connection.server_cursor_factory = RecordedOnServer

    event.listen(Engine, "connect", prepare)
    seen_by_cursors.clear()
    try:
        yield seen_by_cursors
    finally:
        event.remove(Engine, "connect", prepare)


def tasks(cluster: Cluster, query: str, values: Any) -> list[int]:
    """How many shards the parts of a statement touch; empty for one that needs no node but the coordinator."""
    with psycopg.connect(cluster.url) as connection:
        plan = connection.execute(b"EXPLAIN (COSTS OFF) " + query.encode(), values).fetchall()
    return [int(line.rpartition(":")[2]) for (line,) in plan if "Task Count:" in line]


def of_several_shards(cluster: Cluster, seen: Sequence[tuple[str, Any]]) -> set[str]:
    """The statements that touch several shards."""
    found = {shape(query): (query, values) for query, values in seen}
    counts = {name: tasks(cluster, query, values) for name, (query, values) in found.items()}
    assert sum(counts[name] == [1] for name in counts) >= 5
    return {name for name, several in counts.items() if max(several, default=1) > 1}


def shape(query: str) -> str:
    """The statement with lists of any length."""
    return re.sub(r"(%\(\w+\)s(::\w+)?(, )?)+", "%s", query)
