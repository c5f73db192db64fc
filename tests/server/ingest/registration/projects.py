"""A collector with tokens of two projects, and requests with these tokens."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any

import httpx
from sqlalchemy import select

from ammeter.wire import codec, frames
from ammeter.wire.frames import Batch
from ammeter_server.auth import tokens
from ammeter_server.db import Store
from ammeter_server.db.tables import metadata, streams
from tests.server.callers import Guarded, bearer
from tests.server.feeding import Stream, train

PROJECTS = ("ours", "theirs")
SCOPES = ("ingest", "read")


@dataclass
class Place:
    """A collector with a token of each project, and of all of them."""

    client: httpx.Client
    store: Store
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, project: str | None) -> str:
        """Another one of this project."""
        return tokens.create(self.store, uuid.uuid4().hex, SCOPES, project)

    def stream(self, whose: str, **said: Any) -> Stream:
        """One of a project's that is open, with steps 0 to 40."""
        stream = Stream(self.client, headers=bearer(self.tokens[whose]), **said)
        train(stream, 0, 40)
        stream.send()
        return stream

    def get(self, path: str, whose: str) -> httpx.Response:
        return self.client.get(path, headers=bearer(self.tokens[whose]))

    def lies(self, stream: Stream) -> list[str]:
        """The runs that hold it."""
        with self.store.reading() as connection:
            return list(connection.execute(select(streams.c.run).where(streams.c.id == stream.stream)).scalars())

    def all_of(self, run: str) -> dict[str, list[Any]]:
        """What ingest has stored of a run, and nothing of when a shipper was heard last."""
        found = {}
        with self.store.reading() as connection:
            for name in ("streams", "schemas", "chunks", "events", "findings"):
                table = metadata.tables[name]
                rows = connection.execute(select(table).where(table.c.run == run))
                found[name] = sorted(map(repr, rows))
        return found


def tokened(guard: Guarded) -> Place:
    place = Place(guard.client, guard.store)
    place.tokens = {project: place.token(project) for project in PROJECTS} | {"all": place.token(None)}
    return place


def post(stream: Stream, token: str, batch: Batch, offset: int, end: int) -> httpx.Response:
    path = f"/api/v1/runs/{stream.run}/streams/{stream.stream}/frames?offset={offset}&end={end}"
    headers = {"Content-Type": frames.CONTENT_TYPE, **bearer(token)}
    return stream.client.post(path, content=codec.encode_batch(batch), headers=headers)
