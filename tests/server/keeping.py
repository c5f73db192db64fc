"""Streams in a database, stored by ingest itself, and their data as read back."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ammeter.wire import codec, columns, frames
from ammeter.wire.columns import Floats, Ints, View
from ammeter.wire.frames import Batch, Bye, Hello, Schema, Tensor
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Store, connect
from ammeter_server.db.queries.steps.rows import views
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.writer_queue import Intake
from tests.server.databases import migrate, postgresql

TENSORS = tuple(Tensor(f"t{number}", (4,), "float32") for number in range(5))
SCHEMA = Schema(("loss", "scale"), ("grad.norm", "grad.absmax"), TENSORS)
BEGIN = 1_760_000_000 * 10**9


@contextmanager
def server(kind: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database; "" for SQLite, which needs no server."""
    with postgresql() if kind == "postgresql" else nullcontext("") as url:
        yield url


@contextmanager
def database(kind: str, folder: Path) -> Iterator[Store]:
    """A database with the newest schema and no rows: "postgresql", or "sqlite" in the folder."""
    with server(kind) as url:
        url = url or f"sqlite:///{folder / 'c.db'}"
        migrate(url)
        store = connect(url)
        yield store
        store.close()


def numbers(schema: Schema, rows: int, seed: int = 0) -> Floats:
    """Returns float32[columns, rows] of every kind: noise, constants, counts, rare, absent, non-finite."""
    chance = np.random.default_rng(seed)
    values = chance.standard_normal((schema.width, rows)).astype(np.float32)
    values[1] = 65536.0
    values[2] = np.round(100 * values[2])
    values[3, np.arange(rows) % 10 != 0] = columns.ABSENT
    values[4] = columns.ABSENT
    values[5, chance.integers(0, rows, max(1, rows // 100))] = np.nan
    values[6, rows // 2] = np.inf
    values[7] = -0.0
    values[8] = np.array([0x7FC00001], np.uint32).view(np.float32)
    return values


def shown(values: Floats, steps: Ints, lowest: bool) -> tuple[float, int]:
    """The value that a cell of a map has to show of these steps, and its step; absent and -1 without a measurement."""
    there = columns.measured(values)
    values, steps = values[there], steps[there]
    if not len(values):
        return float(columns.ABSENT), -1
    odd = np.flatnonzero(~np.isfinite(values))
    where = int(odd[0] if len(odd) else values.argmin() if lowest else values.argmax())
    return float(values[where]), int(steps[where])


@dataclass
class Fed:
    """A stream in the database, and the data sent."""

    store: Store
    schema: Schema = SCHEMA
    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)
    fed: list[View] = field(default_factory=list)
    offset: int = 0

    def __post_init__(self) -> None:
        self.intake = Intake(AppContext(Settings(), self.store))
        self.send(Hello(self.run, self.stream, self.schema, started=BEGIN, name="nightly"))

    def send(self, *items: frames.Item) -> None:
        body = codec.encode_batch(Batch(list(items)))
        (answer,) = self.intake.commit_group([IngestRequest(self.run, self.stream, self.offset, self.offset + 1, body)])
        assert self.offset + 1 == answer, answer
        self.offset += 1

    def feed(self, values: Floats, at_once: int) -> None:
        """Appends rows, `at_once` in each batch."""
        first = self.rows
        steps = np.arange(first, first + values.shape[1], dtype=np.int64)
        jitter = np.random.default_rng(first).integers(0, 10**6, len(steps))
        view = View(self.schema, steps, BEGIN + steps * 10**8 + jitter, values)
        for begin in range(0, len(steps), at_once):
            self.send(columns.pack(view.rows(begin, min(begin + at_once, len(steps)))))
        self.fed.append(view)

    def change_columns(self, schema: Schema) -> None:
        self.schema = schema
        self.send(Hello(self.run, self.stream, schema, started=BEGIN))

    def end(self) -> None:
        self.send(Bye("closed", self.rows - 1, BEGIN))

    @property
    def rows(self) -> int:
        return sum(len(view) for view in self.fed)

    def views(self) -> list[View]:
        return list(views(self.store, self.run, self.stream, None, None))


def contents(views: list[View]) -> list[tuple[list[int], list[int], bytes]]:
    """Returns steps, times and values bit by bit, one part for each schema."""
    parts: list[list[View]] = []
    for view in views:
        if not parts or parts[-1][0].schema != view.schema:
            parts.append([])
        parts[-1].append(view)
    joined = [columns.join(part[0].schema, part) for part in parts]
    return [(view.steps.tolist(), view.times.tolist(), view.values.astype("<f4").tobytes()) for view in joined]
