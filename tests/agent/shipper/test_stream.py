"""One stream's way to a collector that misbehaves: everything the journal holds arrives once, the rest is declared."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal, layout
from ammeter.shipper import http
from ammeter.shipper import stream as way
from ammeter.shipper.http import Collector
from ammeter.shipper.stream import Delivery
from ammeter.wire.frames import Block, Bye, Event, Hello, Lost, Schema, Steps
from tests.agent.collector_double import CollectorDouble, Reply, Request, collector_double
from tests.agent.ship_parts import RUN, STREAM, assert_delivered_once, event, hello, row, until, writer


@pytest.fixture
def double() -> Iterator[CollectorDouble]:
    with collector_double() as opened:
        yield opened


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Journal]:
    made = writer(tmp_path / RUN)
    yield made
    made.close()


def shipped(double: CollectorDouble, folder: Path, lines: list[str] | None = None, read: float = 30.0) -> Delivery:
    said = lines if lines is not None else []
    collector = Collector(double.url, "secret", lambda *words: said.append(words[2]), read=read)
    return Delivery(folder, collector, lambda *words: said.append(words[2]))


def fill(opened: Journal, rows: int = 40, first: int = 0) -> None:
    for step in range(first, first + rows):
        opened.append(row(step))
        if step % 10 == 3:
            opened.append(event(step))


def end(opened: Journal, step: int = 40) -> None:
    opened.append(Bye("closed", step, 9))
    opened.close()


def turn_until(delivery: Delivery, true: Callable[[], object]) -> None:
    """Gives turns until the condition holds."""

    def turned() -> object:
        delivery.poll()
        return true()

    until(turned)


def deliver(delivery: Delivery) -> None:
    """Gives turns until the stream is delivered to its end."""
    turn_until(delivery, lambda: delivery.done)


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


def test_a_dead_stream_is_left_for_a_while_to_the_process_that_waited_for_it(
    double: CollectorDouble, opened: Journal
) -> None:
    fill(opened)
    opened.close()
    held = journal.lock(journal.witness_path(opened.folder.parent))
    assert held is not None
    delivery = shipped(double, opened.folder)
    delivery.poll()
    assert not journal.ended(opened.folder)
    assert journal.settle(opened.folder, 9, journal.Ending("killed by SIGKILL"))
    deliver(delivery)
    (told,) = [frame for frame in double.frames(STREAM) if isinstance(frame, Bye)]
    assert ("lost", "killed by SIGKILL") == (told.reason, told.message)
    journal.unlock(held)


def test_a_witness_that_says_nothing_is_not_waited_for_long(
    double: CollectorDouble, opened: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way, "WITNESS_SECONDS", 0.2)
    fill(opened)
    opened.close()
    held = journal.lock(journal.witness_path(opened.folder.parent))
    assert held is not None
    delivery = shipped(double, opened.folder)
    deliver(delivery)
    assert journal.ended(opened.folder)
    journal.unlock(held)


def test_what_a_dead_writer_left_on_tmpfs_comes_to_disk_although_the_collector_is_away(
    double: CollectorDouble, tmp_path: Path
) -> None:
    hot = tmp_path / "hot"
    opened = Journal(tmp_path / RUN / STREAM, hot=hot / STREAM, hot_bytes=1_000_000)
    opened.hello(hello())
    fill(opened)
    end(opened)
    before = list(journal.read(opened.folder))
    double.script.append(Reply(503))
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: delivery.failures)
    assert not hot.exists()
    assert before == list(journal.read(opened.folder))


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
    monkeypatch.setattr(http, "SLOW_SECONDS", (0.3, 60.0))
    fill(opened)
    end(opened)
    double.script.append(Reply(status, {"title": "no", "detail": "token is unknown"}))
    lines: list[str] = []
    deliver(shipped(double, opened.folder, lines))
    assert_delivered_once(double, opened.folder)
    assert 1 == sum("token is unknown; data is kept" in line for line in lines)
    first, second = (request.time for request in double.requests[:2])
    assert 0.3 <= second - first < 5


def test_a_page_that_is_no_collector_takes_no_data(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    end(opened)
    double.script.append(Reply(200, raw=b"<html>welcome</html>"))
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)


def test_a_collector_restored_from_an_older_backup_gets_what_it_lacks(double: CollectorDouble, opened: Journal) -> None:
    fill(opened)
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    backup, items = double.offsets[STREAM], list(double.items[STREAM])
    covered, gaps = list(double.covered[STREAM]), list(double.gaps[STREAM])
    fill(opened, first=40)
    turn_until(delivery, lambda: double.offsets[STREAM] > backup)
    double.offsets[STREAM], double.items[STREAM] = backup, items
    double.covered[STREAM], double.gaps[STREAM] = covered, gaps
    end(opened, 80)
    deliver(delivery)
    assert_delivered_once(double, opened.folder)


def test_a_collector_ahead_of_the_journal_is_followed(double: CollectorDouble, opened: Journal) -> None:
    fill(opened, 20)
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    journal.acknowledge(opened.folder, 0)
    fill(opened, first=20)
    end(opened)
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)


def unbelievable(offset: int, status: int = 200) -> Callable[[Request], Reply | None]:
    return lambda _: Reply(status, {"offset": offset})


BROKEN: dict[str, Callable[[Request], Reply]] = {
    "one beyond": lambda asked: Reply(200, {"offset": asked.end + 1}),
    "far beyond": lambda _: Reply(200, {"offset": 2**63 - 1}),
    "beyond count": lambda _: Reply(200, {"offset": 10**3000}),
    "shrinking": lambda asked: Reply(200, {"offset": max(0, asked.begin - 1)}),
    "half of it": lambda asked: Reply(200, {"offset": (asked.begin + asked.end) // 2}),
    "nothing of it": lambda asked: Reply(200, {"offset": asked.begin}),
    "below zero": lambda _: Reply(200, {"offset": -1}),
    "no whole number": lambda asked: Reply(200, {"offset": asked.end + 0.5}),
    "a float": lambda asked: Reply(200, {"offset": float(asked.end)}),
    "text": lambda asked: Reply(200, {"offset": str(asked.end)}),
    "yes": lambda _: Reply(200, {"offset": True}),
    "nothing": lambda _: Reply(200, {}),
    "409 far beyond": lambda _: Reply(409, {"offset": 2**63 - 1}),
    "409 beyond count": lambda _: Reply(409, {"offset": 10**3000}),
    "409 one beyond": lambda asked: Reply(409, {"offset": asked.end + 1}),
    "409 where it is": lambda asked: Reply(409, {"offset": asked.begin}),
    "409 below zero": lambda _: Reply(409, {"offset": -7}),
    "409 text": lambda asked: Reply(409, {"offset": str(asked.end)}),
    "409 without": lambda _: Reply(409, {"title": "somewhere else"}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_acknowledgement_that_cannot_be_is_not_believed_and_the_data_is_kept(
    double: CollectorDouble, opened: Journal, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SLOW_SECONDS", (0.1, 0.2, 0.3))
    fill(opened)
    lines: list[str] = []
    delivery = shipped(double, opened.folder, lines)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    there = journal.acknowledged(opened.folder)
    fill(opened, first=40)
    double.rules.append(BROKEN[name])
    turn_until(delivery, lambda: delivery.failures >= 3)
    asked = [request for request in double.requests if request.end > there]
    assert 3 <= len(asked) <= 4
    assert (there, there) == (journal.acknowledged(opened.folder), delivery.offset)
    assert 1 == len({line for line in lines if "data is kept" in line})
    assert "data is kept" in journal.refusal(opened.folder)
    assert not delivery.up_to_date
    double.rules.clear()
    end(opened, 80)
    deliver(delivery)
    assert_delivered_once(double, opened.folder)
    assert "" == journal.refusal(opened.folder)


@pytest.mark.parametrize("status", [200, 409])
def test_a_shipper_that_begins_does_not_believe_more_than_the_last_one_sent(
    double: CollectorDouble, opened: Journal, status: int
) -> None:
    fill(opened)
    turn_until(shipped(double, opened.folder), lambda: double.offsets.get(STREAM))
    sent = opened.offset
    fill(opened, 3000, first=40)
    double.rules.append(unbelievable(sent + 250_000, status))
    lines: list[str] = []
    delivery = shipped(double, opened.folder, lines)
    turn_until(delivery, lambda: delivery.failures)
    assert sent + 250_000 < opened.offset
    assert sent == delivery.offset
    assert any(f"nothing behind {double.requests[-1].end} was ever sent" in line for line in lines)


def test_what_the_last_shipper_sent_is_believed_although_its_answer_was_lost(
    double: CollectorDouble, opened: Journal
) -> None:
    fill(opened)
    double.script.append(Reply(drop=True))
    shipped(double, opened.folder).poll()
    stored = double.offsets[STREAM]
    assert 0 == journal.acknowledged(opened.folder)
    assert stored == journal.offered(opened.folder)
    end(opened)
    deliver(shipped(double, opened.folder))
    assert_delivered_once(double, opened.folder)


def test_what_was_sent_before_the_host_crashed_is_believed_although_the_journal_lost_it(
    double: CollectorDouble, opened: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(opened)
    turn_until(shipped(double, opened.folder), lambda: double.offsets.get(STREAM))
    stored = double.offsets[STREAM]
    opened.close()
    (_, segment) = journal.segments(opened.folder)[-1]
    segment.write_bytes(segment.read_bytes()[: stored // 2])  # its pages were not on the disk yet
    for name in ("ack", "offered"):  # nor was what was noted last
        words = (opened.folder / name).read_text().split()
        (opened.folder / name).write_text(" ".join(["200", *words[1:]]))
    (tmp_path / "boot_id").write_text("another")
    monkeypatch.setattr(layout, "BOOT_ID", tmp_path / "boot_id")
    lines: list[str] = []
    deliver(shipped(double, opened.folder, lines))
    assert journal.end_of(opened.folder) < stored == journal.acknowledged(opened.folder)
    assert "data is kept" not in " ".join(lines)


def test_a_collector_that_says_another_place_each_time_is_asked_less_and_less_often(
    double: CollectorDouble, opened: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "SLOW_SECONDS", (60.0,))
    fill(opened)
    lines: list[str] = []
    delivery = shipped(double, opened.folder, lines)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    fill(opened, first=40)
    asked = len(double.requests)
    double.rules.append(lambda request: Reply(409, {"offset": 100 if request.begin != 100 else 200}))
    turn_until(delivery, lambda: delivery.failures)
    for _ in range(20):
        delivery.poll()
    assert way.PATIENT_JUMPS + 1 == len(double.requests) - asked
    assert any("data is kept" in line for line in lines)


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


# -- refused frames --------------------------------------------------------------------------------------------------


def refuse(bad: int, *, named: bool) -> tuple[list[int], object]:
    """A rule by which the row of one step is not accepted, with or without saying which item it is in."""
    sizes: list[int] = []

    def rule(request: Request) -> Reply | None:
        for index, item in enumerate(request.batch.items):
            if isinstance(item, Block) and item.first_step <= bad <= item.last_step:
                sizes.append(item.rows)
                return Reply(422, {"detail": "too odd", **({"item": index} if named else {})})
        return None

    return sizes, rule


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("bad", [0, 17, 39])
def test_exactly_the_refused_row_is_declared_rejected(
    double: CollectorDouble, opened: Journal, bad: int, named: bool
) -> None:
    fill(opened)
    end(opened)
    sizes, rule = refuse(bad, named=named)
    double.rules.append(rule)  # type: ignore[arg-type]
    deliver(shipped(double, opened.folder))
    victim = next(e for e in journal.read(opened.folder) if isinstance(e.frame, Steps) and e.frame.step == bad)
    assert [Lost("rejected", 1, 0, victim.begin, victim.end)] == double.gaps[STREAM]
    kept = [e.frame for e in journal.read(opened.folder) if e != victim]
    assert kept == double.frames(STREAM)
    assert len(double.requests) <= 24
    assert 1 == sizes[-1]


def test_several_refused_events_are_declared_each(double: CollectorDouble, opened: Journal) -> None:
    fill(opened, 100)
    end(opened, 100)

    def rule(request: Request) -> Reply | None:
        bad = any(isinstance(item, Event) and item.step in (13, 23, 93) for item in request.batch.items)
        return Reply(400, {"detail": "no"}) if bad else None

    double.rules.append(rule)
    deliver(shipped(double, opened.folder))
    assert [("rejected", 0, 1)] * 3 == [(gap.reason, gap.steps, gap.events) for gap in double.gaps[STREAM]]
    refused = [event(13), event(23), event(93)]
    kept = [e.frame for e in journal.read(opened.folder) if e.frame not in refused]
    assert kept == double.frames(STREAM)


def test_a_hello_that_is_refused_costs_its_rows_but_not_the_events(double: CollectorDouble, opened: Journal) -> None:
    fill(opened, 20)
    end(opened, 20)
    double.rules.append(
        lambda request: Reply(422, {"item": 0}) if any(isinstance(i, Hello) for i in request.batch.items) else None
    )
    deliver(shipped(double, opened.folder))
    assert [event(3), event(13), Bye("closed", 20, 9)] == double.frames(STREAM)
    assert 20 == sum(gap.steps for gap in double.gaps[STREAM])


def test_a_collector_that_refuses_everything_is_not_flooded(double: CollectorDouble, opened: Journal) -> None:
    for step in range(200):
        opened.append(event(step))
    double.rules.append(lambda request: Reply(422, {"item": 0}) if request.batch.items else None)
    delivery = shipped(double, opened.folder)
    begun = time.monotonic()
    turn_until(delivery, lambda: len(double.requests) >= way.PATIENT_REFUSALS + 4)
    assert time.monotonic() - begun > 0.25 / 2


def test_what_is_too_large_is_split_and_the_one_that_is_too_large_alone_is_rejected(
    double: CollectorDouble, opened: Journal
) -> None:
    fill(opened, 300)
    opened.append(Event("big.happened", 300, 1, {"text": "x" * 30_000}))
    fill(opened, 100, first=300)
    end(opened, 400)
    double.rules.append(lambda request: Reply(413, {"title": "too large"}) if request.size > 6_000 else None)
    deliver(shipped(double, opened.folder))
    assert [("rejected", 1)] == [(gap.reason, gap.events) for gap in double.gaps[STREAM]]
    assert 400 == sum(isinstance(frame, Steps) for frame in double.frames(STREAM))
    assert [event(step) for step in range(3, 400, 10)] == [
        frame for frame in double.frames(STREAM) if isinstance(frame, Event)
    ]


def test_an_empty_batch_that_is_refused_does_not_lose_data(
    double: CollectorDouble, opened: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way, "HEARTBEAT_SECONDS", 0.2)
    fill(opened)
    delivery = shipped(double, opened.folder)
    turn_until(delivery, lambda: double.offsets.get(STREAM))
    double.script.append(Reply(400, {"detail": "no heartbeat"}))
    turn_until(delivery, lambda: delivery.failures)
    fill(opened, first=40)
    end(opened, 80)
    deliver(delivery)
    assert_delivered_once(double, opened.folder)


# -- when ------------------------------------------------------------------------------------------------------------


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
        (each.begin, each.end, each.batch.items, each.batch.alive) for each in beats
    ]
    assert all(after.time - before.time >= 0.19 for before, after in itertools.pairwise(beats))


def test_the_backlog_says_how_much_is_still_to_come(double: CollectorDouble, opened: Journal) -> None:
    for step in range(2_500):
        opened.append(row(step))
    end(opened, 2_500)
    deliver(shipped(double, opened.folder))
    size = journal.end_of(opened.folder)
    assert [size - request.end for request in double.requests] == [each.batch.backlog for each in double.requests]
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
