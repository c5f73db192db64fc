"""The shipper as a command: --once, sidecars, other shippers, and its exit."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.environment import identity
from ammeter.journal import Journal
from ammeter.shipper import loop
from ammeter.shipper import process as ship
from ammeter.shipper.loop import Shipper
from ammeter.wire.frames import Hello
from tests.agent.collector_double import CollectorDouble
from tests.agent.ship_parts import RUN, STREAM, assert_delivered_once, hello, present_frames, until, writer
from tests.agent.shipper.processes import PYTHONPATH, end, fill, here, run_lock, ship_once, shipper_pid


def test_a_terminated_shipper_does_not_wait_for_a_writer_that_goes_on(
    double: CollectorDouble, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "EXIT_SECONDS", 0.3)
    opened = here(run_folder)
    shipper = Shipper(run_folder, double.url, None)
    shipper.request_exit()
    begun = time.monotonic()
    assert 0 == shipper.run()
    assert time.monotonic() - begun < 2
    opened.close()


def test_once_sends_what_is_there_of_a_live_run_and_of_dead_ones(double: CollectorDouble, tmp_path: Path) -> None:
    live, other = writer(tmp_path / RUN), writer(tmp_path / str(uuid.uuid4()), "b" * 32)
    for written in (live, other):
        fill(written)
    end(other)
    result = ship_once(tmp_path, double.url)
    assert (0, "") == (result.returncode, result.stderr)
    assert present_frames(live.folder) == double.frames(STREAM)
    assert_delivered_once(double, other.folder)
    live.close()


def test_a_single_stream_can_be_shipped(double: CollectorDouble, tmp_path: Path) -> None:
    opened = writer(tmp_path / RUN)
    fill(opened)
    end(opened)
    assert 0 == ship_once(opened.folder, double.url).returncode
    assert_delivered_once(double, opened.folder)


def test_once_without_a_collector_says_what_is_left_and_fails(tmp_path: Path) -> None:
    opened = writer(tmp_path / RUN)
    end(opened)
    result = ship_once(tmp_path, "http://127.0.0.1:9")
    assert 1 == result.returncode
    assert "accepts no data since" in result.stdout
    assert "1 stream is not completely delivered: the collector does not accept" in result.stdout
    assert f"to deliver the rest: ammeter ship {tmp_path}" in result.stdout


def test_only_streams_of_the_named_host_are_shipped(double: CollectorDouble, run_folder: Path) -> None:
    mine, theirs = here(run_folder), writer(run_folder, "b" * 32)
    for written in (mine, theirs):
        fill(written)
        end(written)
    assert 0 == ship_once(run_folder, double.url, "--host", identity.host()).returncode
    assert [STREAM] == list(double.offsets)


def test_a_stream_that_another_shipper_has_is_left_to_it(double: CollectorDouble, run_folder: Path) -> None:
    opened = here(run_folder)
    fill(opened)
    held_elsewhere = journal.lock(opened.folder / "shipper")
    assert held_elsewhere is not None
    result = ship_once(run_folder, double.url)
    assert 1 == result.returncode
    assert f"process {os.getpid()} ships it" in result.stdout
    assert [] == double.requests
    journal.unlock(held_elsewhere)
    opened.close()


def test_a_second_shipper_of_the_same_host_and_run_leaves_at_once(double: CollectorDouble, run_folder: Path) -> None:
    mine = journal.lock(run_lock(run_folder))
    assert mine is not None
    result = ship_once(run_folder, double.url, "--host", identity.host())
    assert (0, "", "") == (result.returncode, result.stdout, result.stderr)
    journal.unlock(mine)


def test_a_sidecar_finds_runs_that_begin_later(double: CollectorDouble, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "ammeter.shipper.process", str(tmp_path), "--url", double.url]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment) as sidecar:
        for name in ("a" * 32, "b" * 32):
            opened = writer(tmp_path / str(uuid.uuid4()), name)
            fill(opened)
            end(opened)
            until(lambda name=name: double.has_bye(name))  # type: ignore[misc]
            assert_delivered_once(double, opened.folder)
        assert sidecar.poll() is None
        sidecar.terminate()
        assert 0 == sidecar.wait(60)


def test_a_run_folder_that_vanishes_ends_the_shipper(
    double: CollectorDouble, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "GRACE_SECONDS", 0.2)
    opened = here(run_folder)
    shipper = Shipper(run_folder, double.url, None, idle_exit=True)
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(shipper.run()))
    running.start()
    until(lambda: double.offsets)
    opened.folder.rename(run_folder.parent / "gone")
    running.join(60)
    opened.close()
    assert [0] == codes


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere", "--url", "http://h"], "nowhere is not a folder; pass AMMETER_DIR"),
        (["."], "there is no collector; pass --url or set AMMETER_URL"),
        ([".", "--url", "collector:8080"], "url is 'collector:8080'; use http"),
    ],
)
def test_a_wrong_call_names_the_remedy(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        ship.main(words)
    assert 2 == ending.value.code
    assert complaint in capsys.readouterr().err


def test_a_rank_that_has_not_said_hello_yet_is_waited_for(double: CollectorDouble, run_folder: Path) -> None:
    silent = Journal(run_folder / STREAM)
    ship.start(run_folder, double.url)
    until(lambda: shipper_pid(run_folder))
    silent.hello(Hello(run=RUN, stream=STREAM, schema=hello().schema, host=identity.host()))
    fill(silent)
    end(silent)
    until(lambda: double.has_bye(STREAM))
    assert_delivered_once(double, silent.folder)
