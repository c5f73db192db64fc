"""One stream is delivered completely and once to a collector that fails or misbehaves."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.journal.step_ring import COLUMNS
from ammeter.shipper import answers
from ammeter.shipper import stream as way
from ammeter.wire.frames import Block, Hello, Lost, Schema, Steps
from tests.agent.collector_double import CollectorDouble, Reply
from tests.agent.ship_parts import RUN, STREAM, assert_delivered_once, event, hello, row, writer
from tests.agent.shipper.deliveries import deliver, end, fill, shipped, turn_until


def test_a_stream_is_delivered_to_its_end_and_acknowledged(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    end(opened)
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)
    assert journal.end_of(opened.folder) == journal.acknowledged(opened.folder)
    assert ["Bearer secret"] == [request.token for request in double.requests]
    assert not double.requests[0].batch.alive


def test_a_delivered_stream_is_not_sent_again_by_the_next_shipper(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    end(opened)
    deliver(shipped(double, opened.folder))
    asked = len(double.requests)
    deliver(shipped(double, opened.folder))
    assert asked == len(double.requests)


def test_the_next_shipper_goes_on_where_the_last_one_was(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    turn_until(shipped(double, opened.folder), lambda: double.offsets)
    fill(opened, first=40)
    end(opened, 80)
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)


@pytest.mark.parametrize(
    "reply",
    [Reply(500), Reply(503, raw=b"<html>"), Reply(429, headers={"Retry-After": "0"}), Reply(drop=True), Reply(408)],
    ids=["500", "503 from a proxy", "429", "stored but hung up", "408"],
)
def test_what_passes_is_tried_again(double: CollectorDouble, opened: Journal, reply: Reply) -> None:
    fill(opened)
    end(opened)
    double.script.extend([reply] * 2)
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)
    assert len(double.requests) >= 2


def test_retry_after_is_kept(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    end(opened)
    double.script.append(Reply(429, headers={"Retry-After": "0.7"}))
    deliver(shipped(double, opened.folder))
    first, second = (request.time for request in double.requests[:2])
    assert 0.7 <= second - first < 5


def test_a_collector_that_hangs_stores_nothing_twice(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    end(opened)
    release = threading.Event()
    double.script.append(Reply(hang=release, drop=True))
    deliver(shipped(double, opened.folder, read=0.3))
    release.set()
    assert_delivered_once(double, opened.folder)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_who_is_not_let_in_keeps_the_data_and_asks_again(
    double: CollectorDouble, opened: Journal, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "REJECTED_WAITS_SECONDS", (0.3, 60.0))
    fill(opened)
    end(opened)
    double.script.append(Reply(status, {"title": "no", "detail": "token is unknown"}))
    lines: list[str] = []
    deliver(shipped(double, opened.folder, lines))
    assert_delivered_once(double, opened.folder)
    assert 1 == sum("token is unknown; the data stays on disk; check AMMETER_" in line for line in lines)
    first, second = (request.time for request in double.requests[:2])
    assert 0.3 <= second - first < 5


def test_a_page_that_is_no_collector_takes_no_data(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    end(opened)
    double.script.append(Reply(200, raw=b"<html>welcome</html>"))
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)


def test_what_was_deleted_is_declared_to_a_collector_that_lacks_it(double: CollectorDouble, tmp_path: Path) -> None:
    opened = writer(tmp_path / RUN, segment_bytes=3_000)
    fill(opened, 100)
    journal.acknowledge(opened.folder, opened.offset)
    end(opened, 100)
    (_, first), (begin, _) = journal.segments(opened.folder)[:2]
    first.unlink()
    deliver(shipped(double, opened.folder))
    assert [Lost("journal-deleted", begin=0, end=begin)] == double.gaps[STREAM]
    assert_delivered_once(double, opened.folder)


def test_thinned_and_torn_ranges_are_declared_as_gaps(double: CollectorDouble, tmp_path: Path) -> None:
    opened = writer(tmp_path / RUN, segment_bytes=3_000)
    fill(opened, 100)
    end(opened, 100)
    (_, first), (start, second) = journal.segments(opened.folder)[:2]
    journal.thin(first, 10)
    data = bytearray(second.read_bytes())
    victim = next(e for e in journal.read(opened.folder, start) if isinstance(e.frame, Steps))
    data[victim.begin - start + 40] ^= 1
    second.write_bytes(data)
    deliver(shipped(double, opened.folder))
    assert {"journal-thinned", "torn"} == {gap.reason for gap in double.gaps[STREAM]}
    assert_delivered_once(double, opened.folder)


def test_an_event_is_sent_at_once_and_rows_alone_within_a_second(double: CollectorDouble, opened: Journal) -> None:
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    fill(opened, 3)
    begun = time.monotonic()
    turn_until(delivery, lambda: len(double.requests) > 1)
    waited = time.monotonic() - begun
    opened.append(event(3))
    begun = time.monotonic()
    turn_until(delivery, lambda: double.has_event(STREAM, 3))
    assert way.FLUSH_SECONDS > time.monotonic() - begun
    assert 2 * way.FLUSH_SECONDS > waited


def test_many_events_make_at_most_four_requests_a_second(double: CollectorDouble, opened: Journal) -> None:
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    asked, begun = len(double.requests), time.monotonic()

    def five_were_sent() -> bool:
        opened.append(event(1))
        return len(double.requests) >= asked + 5

    turn_until(delivery, five_were_sent)
    assert 4 * way.EVENT_SECONDS <= time.monotonic() - begun


def test_a_bye_does_not_wait(double: CollectorDouble, opened: Journal) -> None:
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    opened.append(event(1))
    turn_until(delivery, lambda: double.has_event(STREAM, 1))
    end(opened, 1)
    delivery.poll()
    assert double.has_bye(STREAM)


def test_a_full_batch_of_rows_does_not_wait_either(double: CollectorDouble, opened: Journal) -> None:
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    for step in range(way.FLUSH_ROWS):
        opened.append(row(step))
    delivery.poll()
    assert way.FLUSH_ROWS == sum(isinstance(frame, Steps) for frame in double.frames(STREAM))


def test_an_idle_stream_says_every_two_seconds_that_it_lives(
    double: CollectorDouble, opened: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way, "HEARTBEAT_SECONDS", 0.2)
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: len(double.requests) >= 4)
    beats = double.requests[1:4]
    assert [(opened.offset, opened.offset, [], True)] * 3 == [
        (beat.begin, beat.end, beat.batch.items, beat.batch.alive) for beat in beats
    ]
    assert all(after.time - before.time >= 0.19 for before, after in itertools.pairwise(beats))


def test_the_backlog_says_how_much_is_still_to_come(double: CollectorDouble, opened: Journal) -> None:
    for step in range(2_500):
        opened.append(row(step))
    end(opened, 2_500)
    deliver(shipped(double, opened.folder))
    size = journal.end_of(opened.folder)
    assert [size - request.end for request in double.requests] == [request.batch.backlog for request in double.requests]
    assert double.requests[0].batch.backlog > 0
    assert_delivered_once(double, opened.folder)


def test_directives_are_left_for_the_agent(double: CollectorDouble, opened: Journal) -> None:
    double.directives = [{"arm": "origin", "steps": 5}]
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    assert '[{"arm":"origin","steps":5}]' == (opened.folder / "directives").read_text()


def test_columns_may_change_on_the_way(double: CollectorDouble, opened: Journal) -> None:
    fill(opened, 5)
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    narrow = Schema(scalars=("scale",))
    opened.hello(Hello(run=RUN, stream=STREAM, schema=narrow))
    opened.append(Steps(6, 6, bytes(4)))
    end(opened, 6)
    deliver(delivery)
    assert_delivered_once(double, opened.folder)
    assert [narrow.id] == [item.schema for item in double.items[STREAM] if isinstance(item, Block)][-1:]
    assert hello() == double.frames(STREAM)[0]


def test_the_newest_step_of_a_writer_that_hangs_is_reported_without_its_row(
    double: CollectorDouble, tmp_path: Path
) -> None:
    opened = Journal(tmp_path / RUN / STREAM, hot=tmp_path / "hot", hot_bytes=100_000)
    opened.hello(hello())
    assert opened.ring is not None
    for step in range(5):
        opened.append(row(step))
        opened.ring.put(step, 1_000_000 + step, *[0.5] * len(COLUMNS))
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM) == opened.offset)
    assert (4, 1_000_004) == (double.requests[-1].batch.completed_step, double.requests[-1].batch.completed_time)
    opened.ring.put(5, 1_000_005, *[0.5] * len(COLUMNS))
    begun = time.monotonic()
    turn_until(delivery, lambda: double.requests[-1].batch.completed_step == 5)
    assert way.HEARTBEAT_SECONDS > time.monotonic() - begun
    assert (opened.offset, opened.offset, []) == (
        double.requests[-1].begin,
        double.requests[-1].end,
        double.requests[-1].batch.items,
    )
    opened.close()


def test_a_stream_without_a_ring_reports_no_step(double: CollectorDouble, opened: Journal) -> None:
    opened.append(row(0))
    turn_until(shipped(double, opened.folder), lambda: double.offsets.get(STREAM))
    assert (-1, 0) == (double.requests[-1].batch.completed_step, double.requests[-1].batch.completed_time)
