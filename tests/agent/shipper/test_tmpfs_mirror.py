"""Without a collector the open segment lies on tmpfs as well, and a process that may wait brings it to the disk."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.environment import identity
from ammeter.journal import Journal
from ammeter.shipper import process, process_death, tmpfs_mirror
from ammeter.shipper.tmpfs_mirror import Mirror
from ammeter.wire.frames import Frame
from tests.agent import programs
from tests.agent.ship_parts import RUN, STREAM, event, hello, row, until


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return journal.private_folder(tmp_path / RUN)


@pytest.fixture
def hot(tmp_path: Path) -> Path:
    return tmp_path / "tmpfs" / STREAM


@pytest.fixture
def writer(run_folder: Path, hot: Path) -> Iterator[Journal]:
    opened = Journal(run_folder / STREAM, hot=hot, hot_bytes=100_000, segment_bytes=2_000)
    opened.hello(hello(host=identity.host()))
    yield opened
    opened.close()


def on_disk(writer: Journal) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(writer.folder.glob("*.seg")))


def everything(writer: Journal) -> list[Frame]:
    return [entry.frame for entry in journal.read(writer.folder)]


def test_what_was_written_is_on_the_disk_after_one_look_and_the_open_segment_stays(writer: Journal, hot: Path) -> None:
    for step in range(100):
        writer.append(row(step))
    before = everything(writer)
    assert Mirror(writer.folder.parent).poll()
    assert writer.offset == len(on_disk(writer))
    assert 1 == len(list(hot.glob("*.seg")))
    assert before == everything(writer)


def test_what_comes_later_is_added_and_read_from_tmpfs_before_that(writer: Journal) -> None:
    of_run = Mirror(writer.folder.parent)
    for step in range(60):
        writer.append(row(step) if step % 7 else event(step))
        assert writer.offset == journal.end_of(writer.folder)
        if step % 5 == 0:
            assert of_run.poll()
            assert writer.offset == len(on_disk(writer))
    assert 60 == len([frame for frame in everything(writer) if frame != hello(host=identity.host())])


def test_half_a_frame_that_was_cut_back_is_cut_back_on_the_disk(writer: Journal) -> None:
    writer.append(row(0))
    _, open_one = journal.segments(writer.folder)[-1]
    with open(open_one, "ab") as file:
        file.write(b"half a frame")
    Mirror(writer.folder.parent).poll()
    assert on_disk(writer).endswith(b"half a frame")
    os.truncate(open_one, writer.offset)
    Mirror(writer.folder.parent).poll()
    assert writer.offset == len(on_disk(writer))


def test_after_the_end_nothing_is_left_on_tmpfs(writer: Journal, hot: Path) -> None:
    writer.append(row(0))
    before = everything(writer)
    writer.close()
    of_run = Mirror(writer.folder.parent)
    of_run.run()
    assert not hot.exists()
    assert not of_run.has_work()
    assert before == everything(writer)


def test_a_dead_writers_stream_waits_for_the_witness_who_says_how_it_ended(
    writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.append(row(0))
    writer.close()
    held = journal.lock(journal.exit_watcher_path(writer.folder.parent))
    assert held is not None
    try:
        of_run = Mirror(writer.folder.parent)
        assert of_run.poll()
        assert of_run.poll()
        assert journal.end_stream(writer.folder, 1, journal.Ending("killed by SIGKILL"))
        of_run.poll()
        assert not of_run.poll()
    finally:
        journal.unlock(held)
    assert journal.ended(writer.folder)


def test_a_witness_that_says_nothing_is_not_waited_for_forever(
    writer: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_death, "EXIT_WATCHER_SECONDS", 0.0)
    writer.close()
    held = journal.lock(journal.exit_watcher_path(writer.folder.parent))
    assert held is not None
    try:
        Mirror(writer.folder.parent).run()
    finally:
        journal.unlock(held)
    assert not journal.ended(writer.folder)


def test_a_stream_that_somebody_ships_is_left_to_them(writer: Journal, hot: Path) -> None:
    held = journal.lock(writer.folder / "shipper")
    assert held is not None
    assert Mirror(writer.folder.parent).poll()
    assert [] == list(writer.folder.glob("*.seg"))
    journal.unlock(held)
    assert Mirror(writer.folder.parent).poll()
    assert 1 == len(list(writer.folder.glob("*.seg")))


def test_a_disk_that_refuses_is_asked_again(
    writer: Journal, hot: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.append(row(0))
    writer.close()
    move, refusals = journal.move, [OSError("no space left"), OSError("no space left")]

    def refuse(path: Path, folder: Path) -> None:
        if refusals:
            raise refusals.pop()
        move(path, folder)

    monkeypatch.setattr(journal, "move", refuse)
    monkeypatch.setattr(tmpfs_mirror, "MIRROR_SECONDS", 0.001)
    Mirror(writer.folder.parent).run()
    assert not hot.exists()
    assert 1 == capsys.readouterr().out.count("the journal cannot be copied to disk yet: no space left")


def test_a_disk_that_refuses_for_an_hour_is_given_up(
    writer: Journal, hot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.close()
    monkeypatch.setattr(journal, "move", lambda path, folder: os.open("/nowhere/at/all", os.O_RDONLY))
    monkeypatch.setattr(tmpfs_mirror, "MIRROR_SECONDS", 0.001)
    monkeypatch.setattr(tmpfs_mirror, "GIVE_UP_SECONDS", 0.01)
    Mirror(writer.folder.parent).run()
    assert hot.exists()


def _mirrors(run_folder: Path) -> int:
    return journal.lock_owner(run_folder / f"mirror.{identity.host()}.lock") or 0


def test_one_process_per_run_is_started_is_nobodys_child_and_leaves_with_the_last_writer(
    writer: Journal, run_folder: Path, hot: Path
) -> None:
    assert process.start(run_folder, None) is None
    until(lambda: _mirrors(run_folder))
    only = _mirrors(run_folder)
    assert process.start(run_folder, None) is None
    with pytest.raises(ChildProcessError):
        os.waitpid(only, os.WNOHANG)
    writer.append(row(0))
    until(lambda: writer.offset == len(on_disk(writer)))
    assert only == _mirrors(run_folder)
    writer.close()
    until(lambda: not Path(f"/proc/{only}").exists())
    assert not hot.exists()
    assert "" == (run_folder / process.LOG_NAME).read_text()


def test_a_mirror_that_is_told_to_end_sees_its_writer_off_first(writer: Journal, run_folder: Path, hot: Path) -> None:
    assert process.start(run_folder, None) is None
    until(lambda: _mirrors(run_folder) and writer.offset == len(on_disk(writer)))
    os.kill(_mirrors(run_folder), signal.SIGTERM)
    writer.append(row(0))
    until(lambda: writer.offset == len(on_disk(writer)))
    writer.close()
    until(lambda: not _mirrors(run_folder))
    assert not hot.exists()


def test_a_mirror_that_cannot_start_says_why_and_raises_nothing(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    reason = process.start(run_folder, None)
    assert reason is not None
    assert "the mirror cannot be started ([Errno 2]" in reason


ENDS = {
    "close": ("run.close(); os._exit(os.path.exists(hot))", "closed", 0),
    "exit": ("sys.exit(3)", "exit", 3),
    "exception": ("raise ValueError", "exception", 1),
    "kill": ("os.kill(os.getpid(), signal.SIGKILL)", None, -9),
    "term": ("os.kill(os.getpid(), signal.SIGTERM)", None, -15),
    "exit at once": ("os._exit(4)", None, 4),
}


@pytest.mark.parametrize("end", ENDS)
def test_when_a_program_has_ended_its_journal_is_on_the_disk_and_nothing_else_is_left(end: str, tmp_path: Path) -> None:
    said, reason, code = ENDS[end]
    ended = programs.start(
        f"""
        import time
        for _ in range(50):
            step()
            time.sleep(0.002)
        hot = open(run._session.journal.folder / "hot").read()
        print(hot, flush=True)
        {said}
        """,
        tmp_path,
    ).end()
    assert code == ended.code
    hot = Path(ended.out.strip())
    assert Path("/dev/shm") in hot.parents
    (run_folder,) = ended.folder.iterdir()
    if reason is not None:
        assert not hot.exists()
    until(lambda: not hot.exists() and not _mirrors(run_folder))
    frames = ended.stream()
    assert (reason is not None) == (programs.bye(frames) is not None)
    assert len(programs.steps(frames)) >= 40
    assert not hot.parent.exists()


def test_who_waits_for_all_children_does_not_wait_for_the_mirror(tmp_path: Path) -> None:
    ended = programs.start(
        """
        step()
        try:
            os.wait()
        except ChildProcessError:
            print("no children", flush=True)
        run.close()
        """,
        tmp_path,
    ).end()
    assert (0, "no children\n") == (ended.code, ended.out)


def test_a_mirror_that_was_killed_costs_no_row(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = programs.start(
        """
        import time
        from ammeter.environment import identity; from ammeter import journal
        lock = run._session.journal.folder.parent / f"mirror.{identity.host()}.lock"
        while not journal.lock_owner(lock):
            time.sleep(0.01)
        os.kill(journal.lock_owner(lock), signal.SIGKILL)
        for _ in range(200):
            step()
        """,
        tmp_path,
    ).end()
    assert time.monotonic() - began < 60
    assert list(range(200)) == programs.steps(ended.stream())
