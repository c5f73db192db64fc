from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from ammeter.wire import codec, frames
from ammeter.wire.frames import Batch, Event, Hello, Schema
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import connect, migrations
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.streams import StreamState
from ammeter_server.db.step_tables import events
from ammeter_server.db.tables import streams as table
from ammeter_server.http.problems import Problem
from ammeter_server.ingest import stream_update
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_cache import MAX_CACHED_STREAMS, MAX_CACHED_TENSORS, StreamCache, StreamKey
from ammeter_server.ingest.stream_update import CachedStream
from ammeter_server.ingest.writer_queue import MAX_GROUP_BATCHES, Intake
from tests.server.feeding import SCHEMA, Stream, break_down, train


@pytest.fixture
def here(tmp_path: Path) -> Iterator[AppContext]:
    url = f"sqlite:///{tmp_path / 'collector.db'}"
    store = connect(url)
    migrations.migrate(store)
    yield AppContext(Settings(database_url=url), store)
    store.close()


@dataclass
class Sender:
    """One stream; each batch has one event, told by its number."""

    run: str = field(default_factory=lambda: str(uuid.uuid4()))
    stream: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent: int = 0

    def next(self, name: str = "a.b") -> IngestRequest:
        hello: list[frames.Item] = [] if self.sent else [Hello(self.run, self.stream, Schema(("loss",)), started=1)]
        body = codec.encode_batch(Batch([*hello, Event(name, self.sent, self.sent)]))
        self.sent += 1
        return IngestRequest(self.run, self.stream, self.sent - 1, self.sent, body)


def numbers(here: AppContext, sender: Sender) -> list[int]:
    with here.store.reading() as connection:
        query = select(events.c.step).where(events.c.stream == sender.stream).order_by(events.c.number)
        return list(connection.execute(query).scalars())


def test_the_row_of_a_stream_is_known_by_the_names_of_its_columns_and_with_their_defaults(here: AppContext) -> None:
    assert StreamState._fields == tuple(table.c.keys())
    run, stream = str(uuid.uuid4()), uuid.uuid4().hex
    with here.store.writing() as connection:
        streams.add_run(connection, run, {"project": "p", "started": 1})
        streams.add(connection, run, stream, 7)
        raw = streams.select_for_update(connection, run, stream)
        assert raw is not None
        assert StreamState(run, stream, last_seen=7, opened=7) == streams.parse_row(connection, raw)


def test_batches_that_come_together_stand_and_fall_by_themselves(here: AppContext) -> None:
    intake, one, other, late = Intake(here), Sender(), Sender(), Sender()
    intake.commit_group([one.next(), late.next()])
    wrong = IngestRequest(one.run, one.stream, 1, 2, b"no batch")
    behind = IngestRequest(late.run, late.stream, 5, 6, late.next().body)
    answers = intake.commit_group([wrong, other.next(), one.next(), behind])
    assert [400, 1, 2, 409] == [answer.status if isinstance(answer, Problem) else answer for answer in answers]
    assert ([0, 1], [0], [0]) == (numbers(here, one), numbers(here, other), numbers(here, late))


def test_one_stream_may_come_twice_at_once(here: AppContext) -> None:
    intake, sender = Intake(here), Sender()
    several = [sender.next() for _ in range(4)]
    again = several[1]
    assert [1, 2, 2, 3, 4] == intake.commit_group([*several[:2], again, *several[2:]])
    assert [0, 1, 2, 3] == numbers(here, sender)


def test_a_fault_over_one_batch_costs_those_that_came_with_it_nothing(
    here: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = streams.add_events

    def faulty(connection: Any, rows: list[dict[str, Any]]) -> None:
        add(connection, rows)
        if any(row["name"] == "bad.luck" for row in rows):
            raise OverflowError("too large")

    monkeypatch.setattr(streams, "add_events", faulty)
    intake, one, other = Intake(here), Sender(), Sender()
    answers = intake.commit_group([one.next(), other.next("bad.luck"), one.next()])
    assert [1, OverflowError, 2] == [type(answer) if isinstance(answer, Exception) else answer for answer in answers]
    assert ([0, 1], []) == (numbers(here, one), numbers(here, other))


def test_a_fault_in_deciding_costs_those_that_came_with_it_nothing(
    here: AppContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking, one, other = Intake(here), Sender(), Sender()
    taking.commit_group([one.next(), other.next()])
    decide = stream_update.decide

    def faulty(known: CachedStream, *rest: Any) -> Any:
        if known.state.id == other.stream:
            raise ZeroDivisionError("bad luck")
        return decide(known, *rest)

    monkeypatch.setattr(stream_update, "decide", faulty)
    answers = taking.commit_group([one.next(), other.next()])
    assert [2, ZeroDivisionError] == [type(answer) if isinstance(answer, Exception) else answer for answer in answers]
    assert ([0, 1], [0]) == (numbers(here, one), numbers(here, other))


def test_what_is_remembered_of_a_stream_counts_only_while_its_row_is_as_it_was_left(here: AppContext) -> None:
    here_too = AppContext(here.settings, here.store)
    both, sender = [Intake(here), Intake(here_too)], Sender()
    for turn in (0, 1, 1, 0, 0, 1):
        assert [sender.sent + 1] == both[turn].commit_group([sender.next()])
    assert list(range(6)) == numbers(here, sender)


def test_a_heartbeat_is_remembered_too(here: AppContext) -> None:
    intake, sender = Intake(here), Sender()
    intake.commit_group([sender.next()])
    beat = IngestRequest(sender.run, sender.stream, 1, 1, codec.encode_batch(Batch(alive=False, backlog=9)))
    assert [1, 2] == [intake.commit_group([beat])[0], intake.commit_group([sender.next()])[0]]
    assert [0, 1] == numbers(here, sender)


def test_states_that_are_remembered_are_those_that_were_stored(tmp_path: Path) -> None:
    """Two that take turns read every row anew, one that takes all batches reads none: the same is stored."""
    found = []
    for count in (1, 2):
        url = f"sqlite:///{tmp_path / f'{count}.db'}"
        store = connect(url)
        migrations.migrate(store)
        intakes = [Intake(AppContext(Settings(database_url=url), store)) for _ in range(count)]
        client = Direct(intakes)
        stream = Stream(client, run="6d3c6b0e-7f0b-4f0e-9a44-3b6f6d0f2f11", stream="0" * 32)  # type: ignore[arg-type]
        for first in range(0, 120, 7):
            train(stream, first, first + 6)
            stream.send()
        break_down(stream, 126, 140)
        stream.send()
        with store.reading() as connection:
            shown = [column for column in table.c if column.name not in ("last_seen", "opened")]
            found.append(connection.execute(select(*shown)).all())
        store.close()
    assert found[0] == found[1]
    assert found[0][0].rows == 141


@dataclass
class Direct:
    """Stands where the client does, and gives each batch to the next intake."""

    intakes: list[Intake]
    turn: int = 0

    def post(self, path: str, content: bytes, headers: dict[str, str]) -> Any:
        *_, run, _, stream, _, query = path.replace("?", "/").split("/")
        offset, end = (int(parameter.partition("=")[2]) for parameter in query.split("&"))
        self.turn += 1
        (answer,) = self.intakes[self.turn % len(self.intakes)].commit_group(
            [IngestRequest(run, stream, offset, end, content)]
        )
        return Answered(200 if answer == end else 500, str(answer))


@dataclass
class Answered:
    status_code: int
    text: str


def test_everybody_who_waits_is_answered_before_it_stops(here: AppContext) -> None:
    intake, senders = Intake(here), [Sender() for _ in range(MAX_GROUP_BATCHES + 3)]

    async def all_at_once() -> list[int]:
        waiting = [asyncio.ensure_future(intake.submit(sender.next())) for sender in senders]
        await asyncio.sleep(0)
        intake.start()
        await asyncio.to_thread(intake.stop)
        return await asyncio.gather(*waiting)

    assert [1] * len(senders) == asyncio.run(all_at_once())
    assert [[0]] * len(senders) == [numbers(here, sender) for sender in senders]


def test_only_so_many_streams_and_tensors_are_remembered() -> None:
    cache = StreamCache()
    for number in range(MAX_CACHED_STREAMS + 5):
        cache.put(StreamKey(None, "run", str(number)), CachedStream(None, StreamState("run", str(number))))
    assert cache.get(StreamKey(None, "run", "4")) is None
    assert cache.get(StreamKey(None, "run", "5")) is not None
    large = Schema(("loss",), (), SCHEMA.tensors * (MAX_CACHED_TENSORS // (2 * len(SCHEMA.tensors))))
    keys = [StreamKey(None, "large", str(number)) for number in range(3)]
    for key in keys:
        cache.put(key, CachedStream(None, StreamState(key.run, key.stream), large))
    assert [False, True, True] == [cache.get(key) is not None for key in keys]
    cache.remove(keys[2])
    assert cache.get(keys[2]) is None
