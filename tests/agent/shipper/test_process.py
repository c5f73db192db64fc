"""The shipper as a process: it is found, it leaves, and nothing is lost when writers, collector or itself go down."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ammeter
from ammeter import journal
from ammeter.environment import identity
from ammeter.journal import Journal
from ammeter.shipper import loop
from ammeter.shipper import process as ship
from ammeter.shipper import stream as way
from ammeter.shipper.loop import Shipper
from ammeter.wire.frames import Bye, Hello
from tests.agent.collector_double import CollectorDouble, Reply, collector_double
from tests.agent.ship_parts import RUN, STREAM, assert_delivered_once, event, held, hello, row, until, writer

PYTHONPATH = str(Path(ammeter.__file__).parents[1])

_seen: set[int] = set()
"""Shippers that a test saw: children of this process, whose end has to be noticed."""


@pytest.fixture
def double() -> Iterator[CollectorDouble]:
    with collector_double() as opened:
        yield opened


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """A run's folder. Whatever still ships it after the test is ended."""
    folder = tmp_path / RUN
    folder.mkdir()
    yield folder
    for lock in folder.glob("shipper.*.lock"):
        owner = lock_owner(lock)
        if owner:
            os.kill(owner, signal.SIGKILL)
            until(lambda lock=lock: not lock_owner(lock))  # type: ignore[misc]
    for pid in _seen - {0, os.getpid()}:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    _seen.clear()


def lock_owner(lock: Path) -> int:
    """The process that holds a lock, 0 for none."""
    with open(lock, "r+b") as file:
        asked = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return pid if kind != fcntl.F_UNLCK else 0


def run_lock(run_folder: Path) -> Path:
    return run_folder / f"shipper.{identity.host()}.lock"


def shipper_pid(run_folder: Path) -> int:
    lock = run_lock(run_folder)
    pid = lock_owner(lock) if lock.exists() else 0
    _seen.add(pid)
    return pid


def here(run_folder: Path, stream: str = STREAM) -> Journal:
    """A journal of this host, which a started shipper looks for."""
    opened = Journal(run_folder / stream, segment_bytes=20_000)
    opened.hello(hello(stream, host=identity.host()))
    return opened


def fill(opened: Journal, rows: int = 30, first: int = 0) -> None:
    for step in range(first, first + rows):
        opened.append(row(step))
        if step % 10 == 3:
            opened.append(event(step))


def end(opened: Journal) -> None:
    opened.append(Bye("closed", 1, 9))
    opened.close()


def ended(run_folder: Path) -> bool:
    return not shipper_pid(run_folder)


def ship_once(folder: Path, url: str, *more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "ammeter.shipper.process", str(folder), "--url", url, "--once", *more]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60)


# -- started by a training process -----------------------------------------------------------------------------------


def test_a_started_shipper_delivers_the_run_and_leaves(
    double: CollectorDouble, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    opened = here(run_folder)
    fill(opened)
    assert ship.start(run_folder, double.url, "secret") is None
    until(lambda: double.offsets.get(STREAM))
    pid = shipper_pid(run_folder)
    said, environment = (Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    assert b"secret" not in said
    assert b"AMMETER_TOKEN=secret" in environment
    assert b"MASTER_ADDR" not in environment
    assert os.getsid(pid) == pid != os.getsid(0)
    assert os.getpriority(os.PRIO_PROCESS, 0) + 5 == os.getpriority(os.PRIO_PROCESS, pid)
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
    end(opened)
    until(lambda: ended(run_folder))
    assert_delivered_once(double, opened.folder)
    assert {"Bearer secret"} == {request.token for request in double.requests}
    assert 0o600 == (run_folder / "shipper.log").stat().st_mode & 0o777
    assert f"{STREAM} is delivered to its end" in (run_folder / "shipper.log").read_text()


def test_starting_takes_the_training_process_a_few_milliseconds(double: CollectorDouble, run_folder: Path) -> None:
    opened = here(run_folder)
    begun = time.process_time()
    ship.start(run_folder, double.url)
    assert 0.05 > time.process_time() - begun
    until(lambda: shipper_pid(run_folder))
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        ship.start(run_folder, double.url)
        times.append(time.perf_counter() - begun)
    assert 0.01 > min(times)
    end(opened)


def test_several_ranks_start_one_shipper(double: CollectorDouble, run_folder: Path) -> None:
    opened = [here(run_folder, uuid.uuid4().hex) for _ in range(4)]
    for each in opened:
        fill(each)
        assert ship.start(run_folder, double.url) is None
    until(lambda: len(double.offsets) == 4)
    only = shipper_pid(run_folder)
    for each in opened:
        end(each)
    until(lambda: all(double.has_bye(each.folder.name) for each in opened))
    assert only == shipper_pid(run_folder)
    for each in opened:
        assert_delivered_once(double, each.folder)
        assert 1 == len({request.begin for request in double.requests if request.stream == each.folder.name} & {0})
    until(lambda: ended(run_folder))


def test_a_shipper_that_cannot_start_says_why_and_raises_nothing(tmp_path: Path) -> None:
    reason = ship.start(tmp_path / "nowhere", "http://127.0.0.1:9", None)
    assert reason is not None
    assert "No such file or directory" in reason
    assert f"ammeter ship {tmp_path / 'nowhere'}" in reason


def test_a_program_whose_collector_is_away_is_told_at_its_end(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AMMETER_RUN_ID", RUN)
    monkeypatch.setenv("AMMETER_FLUSH", "0.2")
    monkeypatch.setattr("ammeter.watching.delivery.TMPFS_FOLDER", run_folder.parent)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    model = torch.nn.Linear(2, 1)
    run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), url=url, dir=run_folder.parent)
    assert RUN == run.id
    run.close()
    assert f"after 0.2 s {url} has not acknowledged all of this run; the shipper retries" in caplog.text
    assert f"Meanwhile: ammeter report {run_folder}" in caplog.text
    until(lambda: shipper_pid(run_folder))


def test_a_program_whose_collector_says_that_it_has_more_than_it_was_sent_is_told_at_its_end(
    double: CollectorDouble,
    run_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AMMETER_RUN_ID", RUN)
    monkeypatch.setenv("AMMETER_FLUSH", "5")
    monkeypatch.setattr("ammeter.watching.delivery.TMPFS_FOLDER", run_folder.parent)
    double.rules.append(lambda _: Reply(200, {"offset": 2**63 - 1}))
    model = torch.nn.Linear(2, 1)
    run = ammeter.watch(model, torch.optim.SGD(model.parameters(), lr=1), url=double.url, dir=run_folder.parent)
    run.close()
    assert f"the collector says that it has {2**63 - 1}" in caplog.text
    log = (run_folder / ship.LOG).read_text()
    assert "data is kept" in log
    assert "is delivered" not in log
    (stream,) = journal.streams(run_folder)
    assert 0 == journal.acknowledged(stream)
    double.rules.clear()
    until(lambda: double.has_bye(stream.name))
    until(lambda: shipper_pid(run_folder))


def test_a_bye_arrives_at_once(double: CollectorDouble, run_folder: Path) -> None:
    opened = here(run_folder)
    ship.start(run_folder, double.url)
    until(lambda: double.offsets.get(STREAM))
    fill(opened)
    begun = time.monotonic()
    end(opened)
    until(lambda: journal.acknowledged(opened.folder) >= opened.offset)
    assert way.FLUSH_SECONDS > time.monotonic() - begun


def test_a_stream_that_begins_while_the_shipper_leaves_is_not_left_behind(
    double: CollectorDouble, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer sees the lock held and starts nothing; the shipper looks once more after it gave the lock back."""
    end(here(run_folder))
    late: list[Journal] = []
    unlock = journal.unlock

    def unlock_late(file: int) -> None:
        if not late and os.readlink(f"/proc/self/fd/{file}").endswith(f"{identity.host()}.lock"):
            late.append(here(run_folder, "late"))
            assert ship.start(run_folder, double.url) is None
            end(late[0])
        unlock(file)

    monkeypatch.setattr(loop, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr(journal, "unlock", unlock_late)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    words = [str(run_folder), "--url", double.url, "--idle-exit", "--host", identity.host()]
    assert 0 == ship.main(words)
    assert double.has_bye("late")
    assert 0 == shipper_pid(run_folder)


# -- deaths ----------------------------------------------------------------------------------------------------------

_WRITER = """
import sys, time
from pathlib import Path
from ammeter.environment import identity
from tests.agent.ship_parts import event, hello, row
from ammeter.journal import Journal
journal = Journal(Path(sys.argv[1]), hot=Path(sys.argv[2]), hot_bytes=100_000, segment_bytes=20_000)
journal.hello(hello(host=identity.host()))
step = 0
while True:
    journal.append(row(step))
    step += 1
    if step == 50:
        print("far enough", flush=True)
    time.sleep(0.0005)
"""


@pytest.fixture
def killed(run_folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A writer in a process of its own that goes on until it is killed."""
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((PYTHONPATH, root))}
    words = [sys.executable, "-c", _WRITER, str(run_folder / STREAM), str(run_folder / "hot")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout
        assert "far enough\n" == process.stdout.readline()
        yield process
        process.kill()


def test_a_killed_writer_loses_nothing_and_its_end_is_told_within_a_second(
    double: CollectorDouble, run_folder: Path, killed: subprocess.Popen[str]
) -> None:
    ship.start(run_folder, double.url)
    until(lambda: len(double.requests) > 3)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    begun = time.monotonic()
    until(lambda: double.has_bye(STREAM))
    assert way.TIDY_SECONDS + 2 > time.monotonic() - begun
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
    until(lambda: "takes nothing since" in (run_folder / "shipper.log").read_text())
    fill(opened, first=30)
    with collector_double(port) as late:
        end(opened)
        until(lambda: late.has_bye(STREAM))
        assert_delivered_once(late, opened.folder)
        until(lambda: "answers again" in (run_folder / "shipper.log").read_text())
    log = (run_folder / "shipper.log").read_text()
    assert 1 == log.count("takes nothing since")
    assert 1 == log.count("answers again")


def test_a_stream_whose_requests_hang_does_not_hold_up_the_others(double: CollectorDouble, run_folder: Path) -> None:
    opened = [here(run_folder, f"{index}" * 32) for index in range(4)]
    release = threading.Event()
    double.rules.append(lambda request: Reply(hang=release) if request.stream.startswith("0") else None)
    for each in opened:
        fill(each)
    ship.start(run_folder, double.url)
    until(lambda: len({request.stream for request in double.requests}) == 4)
    for each in opened:
        end(each)
    begun = time.monotonic()
    until(lambda: all(double.has_bye(each.folder.name) for each in opened[1:]))
    assert time.monotonic() - begun < 2
    double.rules.clear()
    release.set()
    until(lambda: double.has_bye("0" * 32))
    for each in opened:
        assert_delivered_once(double, each.folder)


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


def test_a_terminated_shipper_does_not_wait_for_a_writer_that_goes_on(
    double: CollectorDouble, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "HURRY_SECONDS", 0.3)
    opened = here(run_folder)
    shipper = Shipper(run_folder, double.url, None)
    shipper.hurry()
    begun = time.monotonic()
    assert 0 == shipper.run()
    assert time.monotonic() - begun < 2
    opened.close()


# -- by hand and beside ------------------------------------------------------------------------------------------------


def test_once_sends_what_is_there_of_a_live_run_and_of_dead_ones(double: CollectorDouble, tmp_path: Path) -> None:
    live, other = writer(tmp_path / RUN), writer(tmp_path / str(uuid.uuid4()), "b" * 32)
    for each in (live, other):
        fill(each)
    end(other)
    result = ship_once(tmp_path, double.url)
    assert (0, "") == (result.returncode, result.stderr)
    assert held(live.folder) == double.frames(STREAM)
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
    assert "takes nothing since" in result.stdout
    assert "1 stream(s) are not delivered to their end: the collector does not take it" in result.stdout
    assert f"later: ammeter ship {tmp_path}" in result.stdout


def test_only_streams_of_the_named_host_are_shipped(double: CollectorDouble, run_folder: Path) -> None:
    mine, theirs = here(run_folder), writer(run_folder, "b" * 32)
    for each in (mine, theirs):
        fill(each)
        end(each)
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
        (["nowhere", "--url", "http://h"], "nowhere is no folder; give AMMETER_DIR"),
        (["."], "no collector is named; give --url or set AMMETER_URL"),
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
