"""What processes call their run, and where it lies: two projects may use the same id, and each has a run of its own.

A run is found by its project and its external id, the one that its processes send. The first project that uses an id
has its run under that id. The run of another project lies under an id that follows from both, so every collector finds
it without asking another: a UUID of the variant that RFC 9562 keeps for the future, which no sender may use, so that
nobody can take it beforehand.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import streams

NAMESPACE = uuid.UUID("0f7a3c52-5d0b-5f0e-9a55-0c1f4d1b7c6e")
"""Root of the UUIDv5 that a project and an id become."""

_RESERVED_VARIANT = 0b111 << 61


def id_of(project: str, external: str) -> str:
    """Where a project's run lies whose external id is the id of another project's run."""
    made = uuid.uuid5(NAMESPACE, f"{project}\0{external}")
    return str(uuid.UUID(int=made.int | _RESERVED_VARIANT))


def is_reserved(run: str) -> bool:
    """Whether only the collector gives such ids. Raises ValueError for what is no UUID."""
    return uuid.UUID(run).variant == uuid.RESERVED_FUTURE


def candidates(project: str, external: str) -> tuple[str, str]:
    """The ids under which a project's run with this external id may lie, the one that counts first."""
    return id_of(project, external), external


def find(connection: Connection, project: str, external: str) -> str | None:
    """The id of the project's run that is called so, by its processes or by the collector; None where there is none."""
    there = streams.runs_of(connection, candidates(project, external))
    return pick(there, project, external)


def pick(there: Mapping[str, Row[Any]], project: str, external: str) -> str | None:
    """The same among runs that were looked up, by their ids."""
    return next((run for run in candidates(project, external) if run in there and there[run].project == project), None)


def free(there: Iterable[str], project: str, external: str) -> str:
    """The id that a new run of the project gets."""
    return id_of(project, external) if external in there else external
