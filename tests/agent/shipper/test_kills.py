"""Nothing is lost when writers, the collector or the shipper end or hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from ammeter.shipper import process as ship
from ammeter.shipper import upkeep
from ammeter.wire.frames import Bye
from tests.agent.collector_double import CollectorDouble, Reply, collector_double
from tests.agent.ship_parts import STREAM, assert_delivered_once, until
from tests.agent.shipper.processes import end, ended, fill, here, ship_once, shipper_pid


def test_a_killed_writer_loses_nothing_and_its_end_is_told_within_a_second(
    double: CollectorDouble, run_folder: Path, killed: subprocess.Popen[str]
) -> None:
    ship.start(run_folder, double.url)
    until(lambda: len(double.requests) > 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    begun = time.monotonic()
    until(lambda: double.has_bye(STREAM))
    assert upkeep.CLEAN_SECONDS + 2 > time.monotonic() - begun
    until(lambda: not (run_folder / "hot").exists())
    assert_delivered_once(double, run_folder / STREAM)
    last = double.frames(STREAM)[-1]
    assert isinstance(last, Bye)
    assert "lost" == last.reason


def test_a_killed_shipper_is_replaced_and_nothing_comes_twice(
    double: CollectorDouble, run_folder: Path, killed: subprocess.Popen[str]
) -> None:
    for known in range(3):
        assert ship.start(run_folder, double.url) is None
        until(lambda known=known: shipper_pid(run_folder) and len(double.requests) > 3 * known)  # type: ignore[misc]
        os.kill(shipper_pid(run_folder), signal.SIGKILL)
        until(lambda: ended(run_folder))
    killed.kill()
    killed.wait()
    assert 0 == ship_once(run_folder, double.url).returncode
    assert_delivered_once(double, run_folder / STREAM)
    assert double.has_bye(STREAM)


def test_a_collector_that_comes_late_gets_everything(run_folder: Path) -> None:
    opened = here(run_folder)
    fill(opened)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    ship.start(run_folder, f"http://127.0.0.1:{port}")
    until(lambda: "accepts no data since" in (run_folder / "shipper.log").read_text())
    fill(opened, first=30)
    with collector_double(port) as late:
        end(opened)
        until(lambda: late.has_bye(STREAM))
        assert_delivered_once(late, opened.folder)
        until(lambda: "is reachable again" in (run_folder / "shipper.log").read_text())
    log = (run_folder / "shipper.log").read_text()
    assert 1 == log.count("accepts no data since")
    assert 1 == log.count("is reachable again")


def test_a_stream_whose_requests_hang_does_not_hold_up_the_others(double: CollectorDouble, run_folder: Path) -> None:
    opened = [here(run_folder, f"{index}" * 32) for index in range(4)]
    release = threading.Event()
    double.rules.append(lambda request: Reply(hang=release) if request.stream.startswith("0") else None)
    for writer in opened:
        fill(writer)
    ship.start(run_folder, double.url)
    until(lambda: len({request.stream for request in double.requests}) == 4)
    for writer in opened:
        end(writer)
    begun = time.monotonic()
    until(lambda: all(double.has_bye(writer.folder.name) for writer in opened[1:]))
    assert time.monotonic() - begun < 2
    double.rules.clear()
    release.set()
    until(lambda: double.has_bye("0" * 32))
    for writer in opened:
        assert_delivered_once(double, writer.folder)


def test_a_terminated_shipper_first_delivers_what_ended_with_it(
    double: CollectorDouble, run_folder: Path, killed: subprocess.Popen[str]
) -> None:
    ship.start(run_folder, double.url)
    until(lambda: len(double.requests) > 1)
    os.kill(shipper_pid(run_folder), signal.SIGTERM)
    killed.kill()
    killed.wait()
    until(lambda: ended(run_folder))
    assert double.has_bye(STREAM)
    assert_delivered_once(double, run_folder / STREAM)
