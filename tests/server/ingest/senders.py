"""A sender of any batch, right or wrong, and the stored rows of its run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import Select, select

from ammeter.wire import codec, columns, frames
from ammeter.wire.frames import Batch, Block, Hello, Schema, Steps, Tensor
from ammeter_server.db import Store, connect
from ammeter_server.db.tables import metadata
from tests.server.feeding import serving

SCHEMA = Schema(("loss", "scale"), ("grad.norm",), (Tensor("w", (2, 3), "float32"),))
HEADERS = {"Content-Type": frames.CONTENT_TYPE}


@dataclass
class Sender:
    """Posts whatever it is told to, right or wrong."""

    client: httpx.Client
    store: Store
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)

    def hello(self, schema: Schema = SCHEMA, **said: Any) -> Hello:
        return Hello(self.run, self.stream, schema, **{"started": 1, **said})

    def post(self, items: list[frames.Item], offset: int, end: int, **batch: Any) -> httpx.Response:
        return self.post_body(codec.encode_batch(Batch(items, **batch)), offset, end)

    def post_body(self, body: bytes, offset: int = 0, end: int = 10, **headers: str) -> httpx.Response:
        path = f"/api/v1/runs/{self.run}/streams/{self.stream}/frames?offset={offset}&end={end}"
        return self.client.post(path, content=body, headers=HEADERS | headers)

    def open(self) -> None:
        assert 200 == self.post([self.hello()], 0, 10).status_code


def rows(first: int, last: int, schema: Schema = SCHEMA, **given: float) -> Block:
    values = np.full(schema.width, 1.5, "<f4")
    for name, value in given.items():
        values[schema.scalars.index(name)] = value
    steps = [Steps(step, 1000 + step, values.tobytes()) for step in range(first, last + 1)]
    return columns.pack(columns.view(schema, steps))


@dataclass
class Place:
    """A running collector: a client for it, and its database."""

    client: httpx.Client
    store: Store


@contextmanager
def opened(folder: Path, **settings: Any) -> Iterator[Place]:
    with serving(folder, **settings) as client:
        store = connect(f"sqlite:///{folder / 'collector.db'}")
        try:
            yield Place(client, store)
        finally:
            store.close()


def stored(sender: Sender, *names: str) -> dict[str, list[Any]]:
    """The run's rows in all tables of ingest, or in these, by their keys; without what the judge writes by itself."""
    with sender.store.reading() as connection:
        return {
            name: sorted(map(tuple, connection.execute(of_run(sender, name))), key=repr) for name in names or INGEST
        }


def of_run(sender: Sender, name: str) -> Select[Any]:
    table = metadata.tables[name]
    by_judge = {"judged_version", "judged_at", "claimed_by", "claimed_until", "fleet_progress", "state", "ended"}
    shown = [column for column in table.c if name != "runs" or column.name not in by_judge]
    return select(*shown).where(table.c["id" if name == "runs" else "run"] == sender.run)


INGEST = ("runs", "streams", "schemas", "chunks", "events", "findings")


def of_stream(sender: Sender, name: str) -> Any:
    streams = metadata.tables["streams"]
    with sender.store.reading() as connection:
        return connection.execute(select(streams.c[name]).where(streams.c.id == sender.stream)).scalar_one()
