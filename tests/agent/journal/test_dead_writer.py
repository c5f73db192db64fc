"""The stream of a dead writer gets the steps that it completed and did not write, once, and its final record."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.journal.find import views
from ammeter.journal.step_ring import COLUMNS
from ammeter.shipper.disk_cap import SegmentCleaner
from ammeter.wire.frames import Bye, Frame, Hello, Schema, Steps
from tests import parts
from tests.agent.journal.journals import HELLO, contiguous, recorded, row

ROWS, COMPLETED = 20, 55
"""Rows that the writer writes, and steps that it completes before it is killed."""


def die(folder: Path, work: Callable[[Journal], object], hot: Path | None = None) -> Path:
    """A process writes a journal and kills itself."""
    child = os.fork()
    if not child:
        try:
            writer = Journal(folder / "stream", hot=hot or folder / "hot", hot_bytes=400_000)
            writer.hello(HELLO)
            work(writer)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert signal.SIGKILL == os.WTERMSIG(os.waitpid(child, 0)[1])
    return folder / "stream"


def complete(writer: Journal, rows: int = ROWS) -> None:
    assert writer.ring is not None
    for step in range(COMPLETED):
        writer.ring.put(step, 1_000 + step, *[step + place / 16 for place in range(len(COLUMNS))])
        if step < rows:
            writer.append(row(step))


def steps(frames: list[Frame]) -> list[int]:
    return [frame.step for frame in frames if isinstance(frame, Steps)]


def test_the_missing_steps_are_appended_before_the_bye(tmp_path: Path) -> None:
    folder = die(tmp_path, complete)
    assert journal.end_stream(folder, 9)
    *rows, bye = recorded(folder)
    assert list(range(COMPLETED)) == steps(rows)
    assert [row(step) for step in range(ROWS)] == rows[:ROWS]
    (first, *_) = rows[ROWS:]
    assert isinstance(first, Steps)
    assert 4 * len(HELLO.schema.scalars) == len(first.values)
    assert 1_000 + ROWS == first.time
    assert Bye("lost", COMPLETED - 1, 9) == bye
    assert contiguous(folder)


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.35, 0.5, 0.8, 0.99, 1.0])
def test_a_recovery_that_is_killed_in_the_middle_is_completed_by_the_next(tmp_path: Path, kept: float) -> None:
    folder = die(tmp_path, complete)
    path = journal.segments(folder)[-1][1]
    before = path.stat().st_size
    assert journal.end_stream(folder, 9)
    whole = path.read_bytes()
    os.truncate(path, before + int(kept * (len(whole) - before)))
    assert (kept < 1.0) == journal.end_stream(folder, 9)
    assert whole == path.read_bytes()
    assert not journal.end_stream(folder, 10)
    assert whole == path.read_bytes()


def test_steps_are_recovered_without_a_final_record_too(tmp_path: Path) -> None:
    folder = die(tmp_path, complete)
    for _ in range(2):
        assert journal.recover_steps(folder)
        assert list(range(COMPLETED)) == steps(recorded(folder))
        assert not journal.ended(folder)
    assert journal.end_stream(folder, 9)
    assert list(range(COMPLETED)) == steps(recorded(folder))
    assert journal.ended(folder)


def test_rows_that_the_writer_has_counted_as_lost_are_not_recovered(tmp_path: Path) -> None:
    def work(writer: Journal) -> None:
        complete(writer)
        assert writer.ring is not None
        writer.ring.mark_written([Steps(40, 0, b"")])

    folder = die(tmp_path, work)
    assert journal.end_stream(folder, 9)
    assert [*range(ROWS), *range(41, COMPLETED)] == steps(recorded(folder))


def test_a_row_that_was_written_but_not_marked_is_not_there_twice(tmp_path: Path) -> None:
    def work(writer: Journal) -> None:
        complete(writer, COMPLETED)
        assert writer.ring is not None
        writer.ring.mark_written([Steps(7, 0, b"")])

    folder = die(tmp_path, work)
    assert journal.end_stream(folder, 9)
    assert list(range(COMPLETED)) == steps(recorded(folder))


def test_a_frame_that_was_being_written_is_replaced_by_the_missing_steps(tmp_path: Path) -> None:
    def work(writer: Journal) -> None:
        complete(writer)
        assert writer.ring is not None
        writer.ring.mark_written([Steps(ROWS - 2, 0, b"")])

    folder = die(tmp_path, work)
    _, path = journal.segments(folder)[-1]
    os.truncate(path, path.stat().st_size - 5)
    assert journal.end_stream(folder, 9)
    assert list(range(COMPLETED)) == steps(recorded(folder))
    assert contiguous(folder)


def test_recovered_rows_have_the_columns_of_the_last_hello(tmp_path: Path) -> None:
    wider = Hello(run="r", stream="s", schema=Schema(("user:lr", "loss")))

    def work(writer: Journal) -> None:
        writer.hello(wider)
        complete(writer, 0)

    folder = die(tmp_path, work)
    assert journal.end_stream(folder, 9)
    (*_, last) = list(views(folder))
    assert ("user:lr", "loss") == last.schema.scalars
    loss = COLUMNS.index("loss") / 16
    assert [step + loss for step in range(COMPLETED)] == last.scalar("loss").tolist()


def test_the_stream_of_a_living_writer_is_left_alone(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", hot=tmp_path / "hot", hot_bytes=400_000)
    writer.hello(HELLO)
    complete(writer)
    before = recorded(writer.folder)
    assert not journal.end_stream(writer.folder, 9)
    assert not journal.recover_steps(writer.folder)
    SegmentCleaner(writer.folder).finish()
    assert journal.newest_step(writer.folder)[0] == COMPLETED - 1
    assert before == recorded(writer.folder)
    writer.close()
    assert journal.recover_steps(writer.folder)


def test_readers_see_the_missing_steps_before_they_are_appended(tmp_path: Path) -> None:
    folder = die(tmp_path, complete)
    seen = [int(step) for view in views(folder) for step in view.steps]
    assert list(range(COMPLETED)) == seen
    assert journal.end_stream(folder, 9)
    assert seen == [int(step) for view in views(folder) for step in view.steps]


def test_moving_a_dead_stream_to_the_disk_recovers_its_steps_first(tmp_path: Path) -> None:
    folder = die(tmp_path, complete)
    SegmentCleaner(folder).finish()
    assert not (tmp_path / "hot").exists()
    assert list(range(COMPLETED)) == steps(recorded(folder))
    SegmentCleaner(folder).finish()
    assert journal.end_stream(folder, 9)
    assert list(range(COMPLETED)) == steps(recorded(folder))


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs with room for a ring and a few rows."""
    place = tmp_path / "small"
    place.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place]).returncode:
        parts.missing("a tmpfs can only be mounted by root who has the right to; run this test in such a container")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_steps_for_which_tmpfs_has_no_room_are_appended_on_the_disk(tmp_path: Path, small_tmpfs: Path) -> None:
    folder = die(tmp_path, complete, hot=small_tmpfs / "hot")
    with pytest.raises(OSError, match="No space left"):
        (small_tmpfs / "filler").write_bytes(bytes(256 * 1024))
    assert journal.end_stream(folder, 9)
    assert folder == journal.segments(folder)[-1][1].parent
    assert list(range(COMPLETED)) == steps(recorded(folder))
    assert contiguous(folder)
