"""A training process starts the shipper, which delivers the run and exits."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import uuid
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
from tests.agent.collector_double import CollectorDouble, Reply
from tests.agent.ship_parts import RUN, STREAM, assert_delivered_once, until
from tests.agent.shipper.processes import end, ended, fill, here, shipper_pid


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
    assert b"OPENBLAS_NUM_THREADS=1\0" in environment
    assert os.getsid(pid) == pid != os.getsid(0)
    assert os.getpriority(os.PRIO_PROCESS, 0) + 5 == os.getpriority(os.PRIO_PROCESS, pid)
    assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
    end(opened)
    until(lambda: ended(run_folder))
    assert_delivered_once(double, opened.folder)
    assert {"Bearer secret"} == {request.token for request in double.requests}
    assert 0o600 == (run_folder / "shipper.log").stat().st_mode & 0o777
    assert f"{STREAM} is completely delivered, up to" in (run_folder / "shipper.log").read_text()


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
    for rank in opened:
        fill(rank)
        assert ship.start(run_folder, double.url) is None
    until(lambda: len(double.offsets) == 4)
    only = shipper_pid(run_folder)
    for rank in opened:
        end(rank)
    until(lambda: all(double.has_bye(rank.folder.name) for rank in opened))
    assert only == shipper_pid(run_folder)
    for rank in opened:
        assert_delivered_once(double, rank.folder)
        assert 1 == len({request.begin for request in double.requests if request.stream == rank.folder.name} & {0})
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
    assert f"Until then: ammeter report {run_folder}" in caplog.text
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
    assert f"the collector reports an offset {2**63 - 1}" in caplog.text
    log = (run_folder / ship.LOG_NAME).read_text()
    assert "the data stays on disk" in log
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


def test_what_the_collector_has_is_printed_as_json(
    double: CollectorDouble, run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = here(run_folder)
    end(opened)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert 0 == ship.main([str(run_folder), "--url", double.url, "--once", "--json"])
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    (item,) = printed["items"]
    assert printed["delivered"]
    assert (run_folder.name, STREAM, opened.offset, opened.offset, True, None) == tuple(
        item[key] for key in ("run", "stream", "end", "acknowledged", "delivered", "refusal")
    )
