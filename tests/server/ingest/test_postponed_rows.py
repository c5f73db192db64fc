"""What becomes of rows that wait for their verdicts when something ends, fails or is damaged."""

from __future__ import annotations

import time
from typing import Any

import pytest
from sqlalchemy import select, update

from ammeter.wire import codec
from ammeter.wire.frames import Batch
from ammeter_server.context import AppContext
from ammeter_server.db import Store, StoreAwayError, connect
from ammeter_server.db.step_tables import chunks, segments
from ammeter_server.db.tables import runs, streams
from ammeter_server.ingest import transaction
from ammeter_server.ingest.postponement import MAX_DELAY_NS
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_cache import StreamKey
from ammeter_server.judging import silent_streams
from ammeter_server.judging.silent_streams import SILENCE_NS, tick
from ammeter_server.maintenance.compaction import MIN_SEGMENT_ROWS, MIN_SMALL_BLOCKS, compact
from tests.server.databases import postgresql
from tests.server.feeding import Stream, train
from tests.server.ingest.postponing import RUN, STREAM, Taking, begun, begun_many, opened, send_rows


@pytest.mark.parametrize("compacted", [False, True])
def test_a_collector_that_died_leaves_its_rows_to_the_next(taking: Taking, compacted: bool) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, MIN_SMALL_BLOCKS if compacted else 3)
    if compacted:
        assert compact(taking.context.store, RUN, STREAM, "worker")
        assert taking.chunk_count < MIN_SMALL_BLOCKS
    taking.restart()
    send_rows(stream, taking.row.last_step + 1, taking.row.last_step + 1)
    assert (None, taking.row.rows) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_a_heartbeat_after_a_restart_is_enough(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.restart()
    stream.send()
    assert 1 == taking.row.postponed_from
    taking.catch_up()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_rows_of_a_stream_that_nobody_sends_any_more_are_judged_before_it_is_lost(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    store, last_seen = taking.context.store, taking.row.last_seen
    tick(store, last_seen + SILENCE_NS - 1, 0)
    assert 1 == taking.row.postponed_from
    tick(store, last_seen + SILENCE_NS + 1, 0)
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])
    assert ["run-lost"] == [verdict for verdict, _ in taking.findings()]


def test_what_waits_is_judged_before_the_collector_stops(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.intake.stop()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_rows_that_are_damaged_on_the_disk_do_not_stop_their_stream(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    with taking.context.store.writing() as connection:
        connection.execute(update(chunks).where(chunks.c.first_step == 2).values(data=b"rust"))
    taking.restart()
    send_rows(stream, 4, 4)
    assert (None, 5, 3) == (taking.row.postponed_from, taking.row.rows, taking.row.counters["steps"])


def test_rows_that_are_damaged_in_a_segment_do_not_stop_their_stream_nor_the_check_of_others(taking: Taking) -> None:
    stream = begun(taking)
    store = taking.context.store
    send_rows(stream, 1, MIN_SEGMENT_ROWS)
    taking.is_busy()
    send_rows(stream, MIN_SEGMENT_ROWS + 1, MIN_SEGMENT_ROWS + 3)
    assert MIN_SEGMENT_ROWS + 1 == taking.row.postponed_from
    with store.writing() as connection:
        connection.execute(update(streams).values(last_step=MIN_SEGMENT_ROWS + 3, bye_reason="closed"))
    assert compact(store, RUN, STREAM, "worker")
    with store.writing() as connection:
        assert connection.execute(update(segments).values(steps=b"rust")).rowcount
    tick(store, taking.row.last_seen + SILENCE_NS + 1, 0)
    assert (None, MIN_SEGMENT_ROWS + 1) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_a_stream_that_cannot_be_judged_does_not_hide_that_others_are_silent(
    taking: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, other = begun(taking), Stream(taking, stream="1" * 32)  # type: ignore[arg-type]
    train(other, 0, 0)
    other.send()
    taking.is_busy()
    send_rows(stream, 1, 3)

    def faulty(*_: Any) -> Any:
        raise OverflowError("too large")

    monkeypatch.setattr(silent_streams, "catch_up", faulty)
    tick(taking.context.store, time.time_ns() + SILENCE_NS + 1, 0)
    assert ["run-lost"] == [verdict for verdict, _ in taking.findings()]


@pytest.mark.parametrize("then", ["the batch again", "too long without a batch", "the final record"])
def test_a_batch_that_could_not_be_committed_leaves_nothing_with_the_rows_that_wait(
    taking: Taking, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    stream.say("scaler.growth", 3, **{"from": 32768.0, "to": 65536.0})
    stream.bye(3, "signal")
    items = [*stream.items]
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(transaction, "write", away)
            with pytest.raises(AssertionError):
                stream.send()
    if then == "the batch again":
        stream.send()
        assert (1, "signal") == (taking.row.counters["growths"], taking.row.bye_reason)
    elif then == "too long without a batch":
        taking.is_busy(False)
        taking.catch_up()
        assert ([], 0) == (taking.findings(), taking.row.counters["growths"])
    else:
        stream.items = items[1:]
        stream.send()
        assert (0, "signal") == (taking.row.counters["growths"], taking.row.bye_reason)
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])
    assert {} == taking.intake.postponement.take_overdue(10, at_once=True)


def away(*_: Any) -> Any:
    raise StoreAwayError("away")


def test_a_database_that_is_away_is_not_asked_for_every_stream_before_the_end(
    taking: Taking, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = begun_many(taking)
    taking.is_busy()
    for stream in many:
        send_rows(stream, 1, 1)
    asked = []

    def counted(*_: Any) -> Any:
        asked.append(1)
        raise StoreAwayError("away")

    monkeypatch.setattr(transaction, "catch_up", counted)
    taking.intake.stop()
    assert 1 == len(asked)


def test_rows_of_a_run_that_ended_without_them_are_judged(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    with taking.context.store.writing() as connection:
        connection.execute(update(runs).values(state="ended"))
    tick(taking.context.store, taking.row.last_seen + SILENCE_NS + 1, 0)
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])


def test_a_run_that_was_deleted_meanwhile_has_no_rows_that_wait(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    with taking.context.store.writing() as connection:
        connection.execute(streams.delete())
        connection.execute(runs.delete())
    taking.is_busy(False)
    taking.catch_up()
    assert {} == taking.intake.postponement.take_overdue(10, at_once=True)


def test_a_fault_over_one_stream_costs_the_others_nothing(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, other = begun(taking), Stream(taking, run=RUN, stream="1" * 32)  # type: ignore[arg-type]
    train(other, 0, 0)
    other.send()
    taking.is_busy()
    send_rows(stream, 1, 3)
    send_rows(other, 1, 3)
    catch_up = transaction.catch_up

    def faulty(connection: Any, run: str, stream: str, *rest: Any) -> Any:
        if stream == STREAM:
            raise OverflowError("too large")
        return catch_up(connection, run, stream, *rest)

    monkeypatch.setattr(transaction, "catch_up", faulty)
    taking.is_busy(False)
    taking.catch_up()
    with taking.context.store.reading() as connection:
        rows = connection.execute(select(streams.c.postponed_from).order_by(streams.c.id)).scalars().all()
    assert [1, None] == rows
    send_rows(stream, 4, 4)
    with taking.context.store.reading() as connection:
        rows = connection.execute(select(streams.c.postponed_from).order_by(streams.c.id)).scalars().all()
    assert [None, None] == rows


def test_two_collectors_on_postgresql_judge_each_row_once() -> None:
    with postgresql() as url:
        one = opened(url)
        other = Taking(AppContext(one.context.settings, connect(url)))
        stream = begun(one)
        for turn in range(20):
            here = (one, other)[turn % 3 == 2]
            stream.client = here  # type: ignore[assignment]
            here.is_busy()
            send_rows(stream, 3 * turn + 1, 3 * turn + 3)
        for here in (one, other):
            here.is_busy(False)
            here.catch_up()
        assert (None, 61, 61) == (one.row.postponed_from, one.row.rows, one.row.counters["steps"])
        for here in (one, other):
            here.context.store.close()


def test_a_refused_batch_leaves_the_rows_that_wait(taking: Taking) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    body = codec.encode_batch(Batch([codec_block(stream, 2)]))
    request = IngestRequest(RUN, STREAM, stream.offset, stream.offset + 1, body)
    (refused,) = taking.intake.commit_group([request])
    assert isinstance(refused, Exception)
    assert 1 == taking.row.postponed_from
    assert StreamKey.of(request) in taking.intake.postponement.take_overdue(10, at_once=True)
    taking.clock.now += MAX_DELAY_NS
    send_rows(stream, 4, 4)
    assert (None, 5) == (taking.row.postponed_from, taking.row.counters["steps"])


def codec_block(stream: Stream, step: int) -> Any:
    train(stream, step, step)
    stream.pack()
    return stream.items.pop()


def test_a_store_that_is_away_is_asked_again(taking: Taking, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = begun(taking)
    taking.is_busy()
    send_rows(stream, 1, 3)
    taking.is_busy(False)

    def away(self: Store, durable: bool = True) -> Any:
        raise OSError("away")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "writing", away)
        taking.catch_up()
    assert 1 == taking.row.postponed_from
    stream.send()
    taking.catch_up()
    assert (None, 4) == (taking.row.postponed_from, taking.row.counters["steps"])
