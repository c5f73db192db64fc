"""Two collectors over one PostgreSQL, and senders that reach both: what SQLite's one writer never shows."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select
from sqlalchemy.exc import OperationalError

from ammeter.wire import codec, columns, frames
from ammeter.wire.frames import Batch, Bye, Event, Hello, Schema, Steps
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.db import connect, migrations
from ammeter_server.db.queries import judge as judgements
from ammeter_server.db.step_tables import chunks, events
from ammeter_server.db.tables import runs, streams
from ammeter_server.http.problems import Problem
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.writer_queue import Intake
from ammeter_server.judging.judge import Judge
from tests.server.databases import postgresql

SCHEMA = Schema(("loss",))
BATCHES = 15


@pytest.fixture(scope="module")
def collectors() -> Iterator[list[AppContext]]:
    with postgresql() as url:
        both = [AppContext(Settings(database_url=url), connect(url)) for _ in range(2)]
        migrations.migrate(both[0].store)
        yield both
        for store in both:
            store.store.close()


def batch(run: str, stream: str, index: int) -> bytes:
    if index == 0:
        return codec.encode_batch(Batch([Hello(run, stream, SCHEMA, rank=0, started=1)]))
    row = Steps(index, index, b"\0\0\0\0")
    items: list[frames.Item] = [columns.pack(columns.view(SCHEMA, [row])), Event("a.b", index, index)]
    if index == BATCHES - 1:
        items.append(Bye("closed", index, index))
    return codec.encode_batch(Batch(items))


def taken(here: AppContext, run: str, stream: str, offset: int, body: bytes) -> int:
    """The offset that is committed once the body was taken. Raises what refused it."""
    (answer,) = Intake(here).commit_group([IngestRequest(run, stream, offset, offset + 1, body)])
    if isinstance(answer, Exception):
        raise answer
    return answer


def send(here: AppContext, run: str, stream: str) -> None:
    for index in range(BATCHES):
        body = batch(run, stream, index)
        try:
            taken(here, run, stream, index, body)
        except Problem as refused:  # the other sender was faster, or a 409 tells that it is not that far
            if refused.status != 409:
                raise


def test_senders_of_one_stream_through_two_collectors_store_each_frame_once(collectors: list[AppContext]) -> None:
    run = str(uuid.uuid4())
    names = [uuid.uuid4().hex for _ in range(3)]
    threads = [
        threading.Thread(target=send, args=(here, run, stream)) for stream in names for here in [*collectors] * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in names:
        send(collectors[0], run, stream)
    with collectors[1].store.reading() as connection:
        rows = connection.execute(select(streams).where(streams.c.run == run)).all()
        packed = connection.execute(select(func.count()).select_from(chunks).where(chunks.c.run == run)).scalar_one()
        told = connection.execute(select(func.count()).select_from(events).where(events.c.run == run)).scalar_one()
    assert {(BATCHES, BATCHES - 1, BATCHES - 1, "closed")} == {
        (row.acknowledged, row.rows, row.events, row.bye_reason) for row in rows
    }
    assert (3 * (BATCHES - 1), 3 * (BATCHES - 1)) == (packed, told)


def test_goodbyes_that_meet_end_the_run(collectors: list[AppContext]) -> None:
    run = str(uuid.uuid4())
    names = [uuid.uuid4().hex for _ in range(4)]
    threads = [
        threading.Thread(target=send, args=(collectors[number % 2], run, stream)) for number, stream in enumerate(names)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    judges = [Judge(here.store, here.settings, []) for here in collectors]
    for judge in judges:
        judge.judge_due(10**18)
    with collectors[0].store.reading() as connection:
        assert "ended" == connection.execute(select(runs.c.state).where(runs.c.id == run)).scalar_one()


def test_a_run_under_judgement_cannot_be_claimed_but_takes_frames(collectors: list[AppContext]) -> None:
    run, stream = str(uuid.uuid4()), uuid.uuid4().hex
    here, there = collectors
    taken(here, run, stream, 0, batch(run, stream, 0))
    with here.store.writing() as judging:
        assert judgements.claim(judging, run, "slow", 1, 2)
    with here.store.writing() as judging:
        held = judgements.run_of(judging, run)
        assert held is not None
        assert "slow" == held.claimed_by
        assert 2 == taken(there, run, stream, 1, batch(run, stream, 1))
        with there.store.writing() as claiming:
            claiming.exec_driver_sql("SET LOCAL lock_timeout = '50ms'")
            with pytest.raises(OperationalError, match="lock timeout"):
                judgements.claim(claiming, run, "fast", 10**18, 2 * 10**18)
            claiming.rollback()
    with there.store.writing() as claiming:
        assert judgements.claim(claiming, run, "fast", 10**18, 2 * 10**18)
