"""Deliveries of one stream, polled by the test itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ammeter.journal import Journal
from ammeter.shipper.http import Collector
from ammeter.shipper.stream import Delivery
from ammeter.wire.frames import Bye
from tests.agent.collector_double import CollectorDouble
from tests.agent.ship_parts import event, row, until


def shipped(double: CollectorDouble, folder: Path, lines: list[str] | None = None, read: float = 30.0) -> Delivery:
    log = lines if lines is not None else []
    collector = Collector(double.url, "secret", lambda *entry: log.append(entry[2]), read_seconds=read)
    return Delivery(folder, collector, lambda *entry: log.append(entry[2]))


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
