"""Exactly the rejected frames are reported as gaps; all others are delivered."""

from __future__ import annotations

import time

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.shipper import rejections
from ammeter.shipper import stream as way
from ammeter.wire.frames import Block, Bye, Event, Hello, Lost, Steps
from tests.agent.collector_double import CollectorDouble, Reply, Request
from tests.agent.ship_parts import STREAM, assert_delivered_once, event
from tests.agent.shipper.deliveries import deliver, end, fill, shipped, turn_until


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
    turn_until(delivery, lambda: len(double.requests) >= rejections.REJECTIONS_WITHOUT_WAIT + 4)
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
