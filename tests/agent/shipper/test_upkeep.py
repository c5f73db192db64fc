"""The stream of a dead writer is ended, and its data is moved off tmpfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.shipper import process_death
from ammeter.wire.frames import Bye
from tests.agent.collector_double import CollectorDouble, Reply
from tests.agent.ship_parts import RUN, STREAM, hello
from tests.agent.shipper.deliveries import deliver, end, fill, shipped, turn_until


def test_a_dead_stream_is_left_for_a_while_to_the_process_that_waited_for_it(
    double: CollectorDouble, opened: Journal
) -> None:
    fill(opened)
    opened.close()
    held = journal.lock(journal.exit_watcher_path(opened.folder.parent))
    assert held is not None
    delivery = shipped(double, opened.folder)
    delivery.poll()
    assert not journal.ended(opened.folder)
    assert journal.end_stream(opened.folder, 9, journal.Ending("killed by SIGKILL"))
    deliver(delivery)
    (bye,) = [frame for frame in double.frames(STREAM) if isinstance(frame, Bye)]
    assert ("lost", "killed by SIGKILL") == (bye.reason, bye.message)
    journal.unlock(held)


def test_a_witness_that_says_nothing_is_not_waited_for_long(
    double: CollectorDouble, opened: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_death, "EXIT_WATCHER_SECONDS", 0.2)
    fill(opened)
    opened.close()
    held = journal.lock(journal.exit_watcher_path(opened.folder.parent))
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
