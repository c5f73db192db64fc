"""The sender follows the collector's offset, and rejects an offset that is impossible."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal, layout
from ammeter.shipper import answers
from ammeter.shipper import stream as way
from tests.agent.collector_double import CollectorDouble, Reply, Request
from tests.agent.ship_parts import STREAM, assert_delivered_once
from tests.agent.shipper.deliveries import deliver, end, fill, shipped, turn_until


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
    monkeypatch.setattr(answers, "REJECTED_WAITS_SECONDS", (0.02, 0.04, 0.06))
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
    assert 1 == len({line for line in lines if "the data stays on disk" in line})
    assert "the data stays on disk" in journal.refusal(opened.folder)
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
    assert any(f"but nothing after {double.requests[-1].end} was sent" in line for line in lines)


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
    assert "the data stays on disk" not in " ".join(lines)


def test_a_collector_that_says_another_place_each_time_is_asked_less_and_less_often(
    double: CollectorDouble, opened: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "REJECTED_WAITS_SECONDS", (60.0,))
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
    assert way.JUMPS_WITHOUT_WAIT + 1 == len(double.requests) - asked
    assert any("the data stays on disk" in line for line in lines)
