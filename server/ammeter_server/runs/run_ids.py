"""Maps the run ids that processes use to the ids in the database.

Two projects may use the same id, and each has a run of its own. A run is found by its project and its external id,
which its processes send. The first project that uses an id has its run under that id. Another project's run has an id
derived from project and external id, so every collector finds it without communication. It is a UUID of the variant
that RFC 9562 reserves for the future. Senders may not use that variant, so nobody can occupy such an id beforehand.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ammeter_server.db import Connection, Row
from ammeter_server.db.queries import streams

NAMESPACE = uuid.UUID("0f7a3c52-5d0b-5f0e-9a55-0c1f4d1b7c6e")
"""Namespace of the UUIDv5 of a project and an id."""

_RESERVED_VARIANT = 0b111 << 61

MAX_CACHED_IDS = 4096
"""Derived ids that are kept, about 400 bytes each: a list of runs is asked for again and again."""


def id_of(project: str, external: str) -> str:
    """Returns the id of a project's run if another project's run has its external id."""
    hashed = uuid.uuid5(NAMESPACE, f"{project}\0{external}")
    return str(uuid.UUID(int=hashed.int | _RESERVED_VARIANT))


def is_reserved(run: str) -> bool:
    """Whether the id has the variant that only the collector assigns.

    Raises ValueError for anything but a UUID.
    """
    return uuid.UUID(run).variant == uuid.RESERVED_FUTURE


@lru_cache(MAX_CACHED_IDS)
def candidates(project: str, external: str) -> tuple[str, str]:
    """Returns the possible ids of a project's run, in order of precedence."""
    return id_of(project, external), external


def find(connection: Connection, project: str, external: str) -> str | None:
    """Returns the id of the project's run by its external or internal id.

    None if there is none.
    """
    existing = streams.runs_of(connection, candidates(project, external))
    return pick(existing, project, external)


def pick(existing: Mapping[str, Row[Any]], project: str, external: str) -> str | None:
    """Does the same among runs that were already read, by their ids."""
    return next(
        (run for run in candidates(project, external) if run in existing and existing[run].project == project), None
    )


def free(existing: Iterable[str], project: str, external: str) -> str:
    """Returns the id of a new run of the project."""
    return id_of(project, external) if external in existing else external
