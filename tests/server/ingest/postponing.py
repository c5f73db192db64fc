"""An intake that is as busy as a test wants, and a stream that sends to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import httpx
from sqlalchemy import func, select

from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import Row, connect, migrations
from ammeter_server.db.step_tables import chunks
from ammeter_server.db.tables import findings, streams
from ammeter_server.ingest.postponement import Postponement
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.writer_queue import MAX_GROUP_BATCHES, Intake
from tests.server.feeding import Stream, train

RUN, STREAM = "6d3c6b0e-7f0b-4f0e-9a44-3b6f6d0f2f11", "0" * 32

SECOND = 10**9


@dataclass
class Clock:
    now: int = 0

    def __call__(self) -> int:
        return self.now


@dataclass
class Taking:
    """Stands where an HTTP client does, and passes each batch to an intake that is as busy as the test wants."""

    context: AppContext
    clock: Clock = field(default_factory=Clock)
    intake: Intake = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process of the collector, which knows only the database."""
        self.intake = Intake(self.context)
        self.intake.postponement = Postponement(self.clock)

    def is_busy(self, busy: bool = True) -> None:
        self.intake.postponement.observe(60.0, busy)

    def post(self, path: str, content: bytes, headers: dict[str, str]) -> Any:
        *_, run, _, stream, _, query = path.replace("?", "/").split("/")
        offset, end = (int(parameter.partition("=")[2]) for parameter in query.split("&"))
        (answer,) = self.intake.commit_group([IngestRequest(run, stream, offset, end, content)])
        return httpx.Response(200 if answer == end else 500, text=str(answer))

    @property
    def row(self) -> Row[Any]:
        with self.context.store.reading() as connection:
            return connection.execute(select(streams)).one()

    @property
    def chunk_count(self) -> int:
        with self.context.store.reading() as connection:
            return connection.execute(select(func.count()).select_from(chunks)).scalar_one()

    @property
    def waiting_streams(self) -> int:
        with self.context.store.reading() as connection:
            return connection.execute(select(func.count(streams.c.postponed_from))).scalar_one()

    def findings(self) -> list[tuple[Any, ...]]:
        with self.context.store.reading() as connection:
            query = select(findings.c.verdict, findings.c.body).order_by(findings.c.verdict)
            return [tuple(row) for row in connection.execute(query)]

    def catch_up(self) -> None:
        self.intake._catch_up()


def opened(url: str) -> Taking:
    store = connect(url)
    migrations.migrate(store)
    return Taking(AppContext(Settings(database_url=url), store))


def begun(taking: Taking, steps: int = 1, name: str = STREAM) -> Stream:
    stream = Stream(taking, run=RUN, stream=name)  # type: ignore[arg-type]
    stream.send()
    train(stream, 0, steps - 1)
    stream.send()
    return stream


def send_rows(stream: Stream, first: int, last: int) -> None:
    """One batch for each row."""
    for step in range(first, last + 1):
        train(stream, step, step)
        stream.send()


def begun_many(taking: Taking) -> list[Stream]:
    """More streams than one transaction judges."""
    return [begun(taking, name=f"{number:032x}") for number in range(2 * MAX_GROUP_BATCHES + 1)]
