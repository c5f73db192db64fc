"""The writer loses nothing silently: full disks, short writes, threads and interrupts."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.frames import Bye, Event, Lost, Steps
from tests.agent.journal.journals import HELLO, contiguous, event, hot_writer, recorded, row

SMALL = 3_000


@contextmanager
def small_files() -> Iterator[None]:
    """No file may grow past SMALL bytes in this process: a write then is short, and the next one fails.

    Only for as long as a journal is written: what pytest prints may go to a file too.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_short_write_is_cut_back_and_told(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream")
    with small_files():
        writer.hello(HELLO)
        results = [writer.append(row(step)) for step in range(100)]
        writer.append(Bye("closed", 99, 1))
        writer.close()
    lost = sum(frame.steps for frame in recorded(writer.folder) if isinstance(frame, Lost))
    kept = [frame for frame in recorded(writer.folder) if isinstance(frame, Steps)]
    assert 0 < results.count(False) == lost
    assert 100 == len(kept) + lost
    assert contiguous(writer.folder)
    assert all(path.stat().st_size <= SMALL for _, path in journal.segments(writer.folder))


def test_a_row_that_never_fits_is_lost_alone(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream")
    with small_files():
        writer.hello(HELLO)
        fitted = [writer.append(row(0, SMALL)), writer.append(row(1, SMALL)), writer.append(row(2))]
    writer.close()
    assert [False, False, True] == fitted
    assert [Lost("journal-unwritable", 1), Lost("journal-unwritable", 1), row(2)] == recorded(writer.folder)


def test_a_folder_that_refuses_writing_loses_rows_and_tells_how_many(tmp_path: Path) -> None:
    hot, writer = hot_writer(tmp_path, segment_bytes=10_000)
    writer.append(row(0))
    _close_open_file(writer)
    elsewhere = writer.folder.rename(tmp_path / "elsewhere")
    hot.rename(tmp_path / "hot elsewhere")
    assert [False] * 5 == [writer.append(row(step)) for step in range(1, 6)]
    assert not writer.append(event(5))
    elsewhere.rename(writer.folder)
    assert writer.append(row(6))
    writer.close()
    assert [Lost("journal-unwritable", 5, 1), row(6)] == recorded(writer.folder)[-2:]


def test_the_open_segment_lies_on_tmpfs_and_goes_to_the_folder_when_tmpfs_is_full(tmp_path: Path) -> None:
    hot, writer = hot_writer(tmp_path)
    for step in range(200):
        writer.append(row(step))
    writer.close()
    assert {hot, writer.folder} == {path.parent for _, path in journal.segments(writer.folder)}
    assert 8_000 >= sum(path.stat().st_size for path in hot.glob("*.seg")) > 0
    assert [row(step) for step in range(200)] == recorded(writer.folder)


def test_a_write_that_fails_on_tmpfs_goes_to_the_folder_instead(tmp_path: Path) -> None:
    _, writer = hot_writer(tmp_path)
    writer.append(row(0))
    _close_open_file(writer)
    assert writer.append(row(1))
    assert writer.folder == journal.segments(writer.folder)[-1][1].parent
    writer.close()
    assert [row(0), row(1)] == recorded(writer.folder)


def _close_open_file(writer: Journal) -> None:
    """From now on writing to the open segment fails: its descriptor can only be read from."""
    _, path = journal.segments(writer.folder)[-1]
    readable = os.open(path, os.O_RDONLY)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if number != readable and os.path.samestat(os.fstat(number), path.stat()):
                os.dup2(readable, number)
    os.close(readable)


def test_several_threads_write_into_one_journal_and_nothing_is_lost_or_torn(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=50_000)
    writer.hello(HELLO)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [
            threading.Thread(
                target=lambda first: [writer.append(event(first + at)) for at in range(2_000)], args=(first,)
            )
            for first in (0, 10_000, 20_000, 30_000)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    writer.close()
    emitted = [frame.step for frame in recorded(writer.folder) if isinstance(frame, Event)]
    assert 8_000 == len(recorded(writer.folder))
    for first in (0, 10_000, 20_000, 30_000):
        assert list(range(first, first + 2_000)) == [step for step in emitted if first <= step < first + 10_000]


@pytest.mark.parametrize("_", range(20))
def test_all_is_written_when_close_returns_although_another_thread_goes_on_writing(_: int, tmp_path: Path) -> None:
    writer, is_over = Journal(tmp_path / "stream"), threading.Event()
    writer.hello(HELLO)

    def write() -> None:
        while not is_over.is_set():
            writer.append(event(1))

    thread = threading.Thread(target=write)
    thread.start()
    writer.append(row(7))
    writer.append(Bye("exit", 7, 0))
    writer.close()
    frames = recorded(writer.folder)
    is_over.set()
    thread.join()
    assert [row(7), Bye("exit", 7, 0)] == [frame for frame in frames if not isinstance(frame, Event)]


def test_a_turn_that_an_interrupt_took_away_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ammeter.journal.turns.monotonic", lambda: now[0])
    writer = Journal(tmp_path / "stream")
    writer.hello(HELLO)
    writer._turns._turn.clear()
    for step in range(200):
        writer.append(row(step))
        now[0] += 0.1
    writer.close()
    assert [row(step) for step in range(200)] == recorded(writer.folder)
