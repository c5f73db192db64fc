"""The record of a stream: nothing written is lost or told twice, whatever happens to its writer and its files."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter import journal
from ammeter.journal import Journal, layout
from ammeter.wire.codec import encode
from ammeter.wire.frames import Bye, Event, Frame, Hello, Lost, Schema, Steps

HELLO = Hello(run="r", stream="s", schema=Schema())


def row(step: int, size: int = 60) -> Steps:
    return Steps(step, 1_000 + step, bytes(size))


def event(step: int) -> Event:
    return Event("step.skipped", step, 1_000 + step, {"scale": 65536.0, "consecutive": 1})


def frames(folder: Path, offset: int = 0) -> list[Frame]:
    return [entry.frame for entry in journal.read(folder, offset)]


def said(folder: Path, offset: int = 0) -> list[Frame]:
    """Everything but the hellos that head the segments."""
    return [frame for frame in frames(folder, offset) if not isinstance(frame, Hello)]


def contiguous(folder: Path) -> bool:
    entries = list(journal.read(folder))
    return [entry.begin for entry in entries] == [0] + [entry.end for entry in entries[:-1]]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Journal]:
    opened = Journal(tmp_path / "stream", segment_bytes=2_000)
    opened.hello(HELLO)
    yield opened
    opened.close()


def test_what_is_appended_is_read_back_in_order(writer: Journal) -> None:
    written: list[Frame] = [row(0), event(0), row(1), Bye("closed", 1, 5)]
    assert all(writer.append(frame) for frame in written)
    assert [HELLO, *written] == frames(writer.folder)
    assert writer.offset == journal.end_of(writer.folder) == journal.written(writer.folder)


def test_every_segment_begins_with_a_hello_and_is_named_by_its_offset(writer: Journal) -> None:
    for step in range(100):
        writer.append(row(step))
    listed = journal.segments(writer.folder)
    assert len(listed) > 3
    for start, path in listed:
        assert f"{start:020d}" == path.stem
        assert next(journal.read(writer.folder, start)).frame == HELLO
    assert [row(step) for step in range(100)] == said(writer.folder)
    assert contiguous(writer.folder)


def test_a_reader_can_start_at_any_frame_and_stop_after_some_bytes(writer: Journal) -> None:
    for step in range(60):
        writer.append(row(step))
    entries = list(journal.read(writer.folder))
    for index in range(0, len(entries), 7):
        assert entries[index:] == list(journal.read(writer.folder, entries[index].begin))
    few = list(journal.read(writer.folder, limit_bytes=500))
    assert entries[: len(few)] == few
    assert 500 <= few[-1].end < 700
    assert [] == list(journal.read(writer.folder, entries[-1].end))


def test_changed_columns_are_said_in_the_middle_and_the_hello_in_force_is_found(writer: Journal) -> None:
    writer.append(row(0))
    wider = Hello(run="r", stream="s", schema=Schema(scalars=("scale", "lr")))
    before = writer.offset
    writer.hello(wider)
    writer.append(row(1))
    assert HELLO == journal.schema_before(writer.folder, 0)
    assert HELLO == journal.schema_before(writer.folder, before)
    assert wider == journal.schema_before(writer.folder, writer.offset)
    for step in range(60):
        writer.append(row(step))
    assert wider == journal.schema_before(writer.folder, writer.offset)
    assert HELLO == journal.schema_before(writer.folder, before)


def test_a_stream_without_frames_reads_as_empty(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream")
    assert [] == frames(writer.folder)
    assert 0 == journal.end_of(writer.folder) == journal.written(writer.folder)
    assert journal.schema_before(writer.folder, 0) is None
    writer.close()
    assert not journal.settle(writer.folder, 1)


def test_the_folder_is_private_and_no_symlink_is_followed(tmp_path: Path) -> None:
    folder = journal.private_folder(tmp_path / "stream")
    assert 0o700 == folder.stat().st_mode & 0o777
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="is a symlink"):
        Journal(tmp_path / "link")


# -- torn frames -------------------------------------------------------------------------------------------------


def test_a_torn_tail_is_not_read_until_it_is_whole(writer: Journal) -> None:
    writer.append(row(0))
    (_, path), data = journal.segments(writer.folder)[-1], encode(row(1), writer.offset)
    for cut in (1, 19, 21, len(data) - 1):
        whole = path.read_bytes()
        path.write_bytes(whole + data[:cut])
        assert [row(0)] == said(writer.folder)
        assert [] == frames(writer.folder, writer.offset)
        path.write_bytes(whole)
    path.write_bytes(path.read_bytes() + data)
    assert [row(1)] == frames(writer.folder, writer.offset)


def test_a_torn_middle_is_told_as_a_hole_and_all_else_is_read(writer: Journal) -> None:
    for step in range(5):
        writer.append(row(step))
    entries = list(journal.read(writer.folder))
    broken = entries[3]
    _, path = journal.segments(writer.folder)[0]
    data = bytearray(path.read_bytes())
    data[broken.begin + 30] ^= 0xFF
    path.write_bytes(data)
    hole = Lost("torn", begin=broken.begin, end=broken.end)
    assert [row(0), row(1), hole, row(3), row(4)] == said(writer.folder)
    assert contiguous(writer.folder)


def test_bytes_that_look_like_a_header_inside_a_row_change_nothing(writer: Journal) -> None:
    tricky = Steps(1, 1, b"AmJ1" * 40 + encode(row(7), 5))
    writer.append(row(0))
    writer.append(tricky)
    writer.append(row(2))
    assert [row(0), tricky, row(2)] == said(writer.folder)


# -- the disk ----------------------------------------------------------------------------------------------------


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
    lost = sum(frame.steps for frame in said(writer.folder) if isinstance(frame, Lost))
    kept = [frame for frame in said(writer.folder) if isinstance(frame, Steps)]
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
    assert [Lost("journal-unwritable", 1), Lost("journal-unwritable", 1), row(2)] == said(writer.folder)


def test_a_folder_that_refuses_writing_loses_rows_and_tells_how_many(tmp_path: Path) -> None:
    hot, writer = _hot_writer(tmp_path, segment_bytes=10_000)
    writer.append(row(0))
    _close_open_file(writer)
    elsewhere = writer.folder.rename(tmp_path / "elsewhere")
    hot.rename(tmp_path / "hot elsewhere")
    assert [False] * 5 == [writer.append(row(step)) for step in range(1, 6)]
    assert not writer.append(event(5))
    elsewhere.rename(writer.folder)
    assert writer.append(row(6))
    writer.close()
    assert [Lost("journal-unwritable", 5, 1), row(6)] == said(writer.folder)[-2:]


def test_the_open_segment_lies_on_tmpfs_and_goes_to_the_folder_when_tmpfs_is_full(tmp_path: Path) -> None:
    hot, writer = _hot_writer(tmp_path)
    for step in range(200):
        writer.append(row(step))
    writer.close()
    assert {hot, writer.folder} == {path.parent for _, path in journal.segments(writer.folder)}
    assert 8_000 >= sum(path.stat().st_size for path in hot.glob("*.seg")) > 0
    assert [row(step) for step in range(200)] == said(writer.folder)


def test_a_write_that_fails_on_tmpfs_goes_to_the_folder_instead(tmp_path: Path) -> None:
    _, writer = _hot_writer(tmp_path)
    writer.append(row(0))
    _close_open_file(writer)
    assert writer.append(row(1))
    assert writer.folder == journal.segments(writer.folder)[-1][1].parent
    writer.close()
    assert [row(0), row(1)] == said(writer.folder)


def _hot_writer(tmp_path: Path, segment_bytes: int = 2_000) -> tuple[Path, Journal]:
    hot = tmp_path / "hot"
    writer = Journal(tmp_path / "stream", hot=hot, hot_bytes=8_000, segment_bytes=segment_bytes)
    writer.hello(HELLO)
    return hot, writer


def _close_open_file(writer: Journal) -> None:
    """From now on writing to the open segment fails: its descriptor can only be read from."""
    _, path = journal.segments(writer.folder)[-1]
    readable = os.open(path, os.O_RDONLY)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if number != readable and os.path.samestat(os.fstat(number), path.stat()):
                os.dup2(readable, number)
    os.close(readable)


# -- the cap -----------------------------------------------------------------------------------------------------


def test_nearing_the_cap_the_writer_keeps_every_tenth_row_then_every_hundredth_then_events_only(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=2_000, cap_bytes=100_000)
    writer.hello(HELLO)
    kept = [step for step in range(20_000) if writer.append(row(step))]
    assert writer.append(event(20_000))
    strides = [after - before for before, after in itertools.pairwise(kept)]
    assert {1, 10, 100} <= set(strides)
    assert kept[-1] < 18_000
    told = said(writer.folder)
    assert 20_000 == len(kept) + sum(frame.steps for frame in told if isinstance(frame, Lost))
    assert event(20_000) == told[-1]
    writer.close()


def test_at_the_cap_events_are_counted_instead_of_written_and_the_end_is_told_all_the_same(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=2_000, cap_bytes=20_000)
    writer.hello(HELLO)
    kept = sum(writer.append(event(step)) for step in range(2_000))
    assert writer.append(Bye("closed", 1_999, 7))
    assert 20_000 <= sum(path.stat().st_size for _, path in journal.segments(writer.folder)) < 22_500
    told = said(writer.folder)
    assert 2_000 == kept + sum(frame.events for frame in told if isinstance(frame, Lost))
    assert Bye("closed", 1_999, 7) == told[-1]
    writer.close()


def test_rows_are_written_again_once_the_folder_has_room(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=2_000, cap_bytes=20_000)
    writer.hello(HELLO)
    step = 0
    while any(writer.append(row(step := step + 1)) for _ in range(300)):
        pass
    for _, path in journal.segments(writer.folder)[:-1]:
        path.unlink()
    assert any(writer.append(row(step + more)) for more in range(1, 600))
    writer.close()


# -- what the shipper does to closed segments ----------------------------------------------------------------------


def test_a_thinned_segment_keeps_every_tenth_row_and_all_else_and_tells_what_went(writer: Journal) -> None:
    for step in range(60):
        writer.append(row(step))
        if step % 7 == 0:
            writer.append(event(step))
    before, closed = said(writer.folder), journal.segments(writer.folder)[:-1]
    for _, path in closed:
        size = path.stat().st_size
        journal.thin(path, 10)
        assert path.stat().st_size < size
    after = said(writer.folder)
    thinned = sum(frame.steps for frame in after if isinstance(frame, Lost))
    assert [frame for frame in before if isinstance(frame, Event)] == [f for f in after if isinstance(f, Event)]
    assert 60 == len([frame for frame in after if isinstance(frame, Steps)]) + thinned
    assert thinned > 30
    assert all(row(step) in after for step in range(0, 60, 10))
    assert contiguous(writer.folder)


@pytest.mark.parametrize("keep", [10, 0])
def test_reading_from_any_offset_of_a_thinned_segment_yields_the_same_frames(writer: Journal, keep: int) -> None:
    for step in range(60):
        writer.append(row(step))
        if step % 9 == 0:
            writer.append(event(step))
    for _, path in journal.segments(writer.folder)[:-1]:
        journal.thin(path, keep)
    entries = list(journal.read(writer.folder))
    for index, entry in enumerate(entries):
        assert entries[index:] == list(journal.read(writer.folder, entry.begin))
        inside = list(journal.read(writer.folder, entry.begin + 1))
        assert (entry.begin + 1, entry.end, entry.frame) == (inside[0].begin, inside[0].end, inside[0].frame)
        assert entries[index + 1 :] == inside[1:]


def test_thinning_again_leaves_one_lost_frame_per_stretch(writer: Journal) -> None:
    for step in range(20):
        writer.append(row(step))
    _, path = journal.segments(writer.folder)[0]
    rows = len([frame for frame in frames(writer.folder) if isinstance(frame, Steps)])
    in_first = [e for e in journal.read(writer.folder) if e.end <= journal.segments(writer.folder)[1][0]]
    journal.thin(path, 10)
    journal.thin(path, 0)
    lost = [frame for frame in said(writer.folder) if isinstance(frame, Lost)]
    assert [Lost("journal-thinned", len(in_first) - 1, 0, in_first[1].begin, in_first[-1].end)] == lost
    assert rows == len([f for f in frames(writer.folder) if isinstance(f, Steps)]) + lost[0].steps


def test_a_dropped_segment_is_counted_in_one_frame(writer: Journal) -> None:
    for step in range(40):
        writer.append(row(step))
        writer.append(event(step))
    (start, path), (end, _) = journal.segments(writer.folder)[:2]
    inside = [entry.frame for entry in journal.read(writer.folder) if entry.end <= end]
    journal.thin(path, 10)
    journal.drop(path, end)
    steps, events = (sum(isinstance(frame, kind) for frame in inside) for kind in (Steps, Event))
    assert Lost("journal-cap", steps, events, start, end) == frames(writer.folder)[0]
    assert contiguous(writer.folder)


def test_a_deleted_segment_is_a_hole_that_is_called_deleted(writer: Journal) -> None:
    for step in range(60):
        writer.append(row(step))
    (_, first), (begin, _) = journal.segments(writer.folder)[:2]
    first.unlink()
    assert Lost("journal-deleted", begin=0, end=begin) == frames(writer.folder)[0]
    assert contiguous(writer.folder)


def test_a_moved_segment_is_found_by_who_listed_it_before(tmp_path: Path) -> None:
    _, writer = _hot_writer(tmp_path)
    for step in range(60):
        writer.append(row(step))
    reading = journal.read(writer.folder)
    seen = [next(reading)]
    for _, path in journal.segments(writer.folder)[:-1]:
        journal.move(path, writer.folder)
    seen += reading
    assert [row(step) for step in range(60)] == [e.frame for e in seen if not isinstance(e.frame, Hello)]
    writer.close()


@pytest.mark.parametrize("number", range(6))
def test_what_is_written_to_the_disk_and_to_tmpfs_again_between_two_looks_is_not_missed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot, writer = _hot_writer(tmp_path, segment_bytes=1_000)
    rest = iter(range(200))

    def write(rows: int) -> None:
        for _ in range(rows):
            writer.append(row(next(rest)))

    def look(place: Path) -> dict[int, Path]:
        found = listed(place)
        if next(looks) == number:
            writer.leave_tmpfs()
            write(20)  # segments on the disk, which may have been looked at
            writer._hot = hot
            writer._close_segment()
            write(20)
        return found

    write(10)
    looks, listed = itertools.count(), layout._listed
    monkeypatch.setattr(layout, "_listed", look)
    seen = [entry.frame for entry in journal.read(writer.folder)]
    there = [frame for frame in seen if not isinstance(frame, Hello)]
    assert 10 <= len(there) <= 50, "a segment that was begun after the looks may come with the next reading"
    assert [row(step) for step in range(len(there))] == there, "and what came has no hole"
    writer.close()


def test_reading_while_segments_are_written_and_moved_loses_nothing(tmp_path: Path) -> None:
    _, writer = _hot_writer(tmp_path, segment_bytes=1_000)
    seen: list[Frame] = []
    finished = threading.Event()

    def ship() -> None:
        offset = 0
        while True:
            last = finished.is_set()
            for entry in journal.read(writer.folder, offset):
                seen.append(entry.frame)
                offset = entry.end
            for _, path in journal.segments(writer.folder)[:-1]:
                if path.parent != writer.folder:
                    journal.move(path, writer.folder)
            if last:
                return

    shipper = threading.Thread(target=ship)
    shipper.start()
    for step in range(800):
        writer.append(row(step))
    finished.set()
    shipper.join(30)
    writer.close()
    assert [row(step) for step in range(800)] == [frame for frame in seen if not isinstance(frame, Hello)]


def test_looking_at_an_unchanged_journal_is_cheap(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream")
    writer.hello(HELLO)
    for step in range(20_000):
        writer.append(row(step))
    times = []
    for _ in range(200):
        start = time.perf_counter()
        assert [] == list(journal.read(writer.folder, writer.offset))
        times.append(time.perf_counter() - start)
    assert 0.001 > min(times)
    writer.close()


# -- life and death ------------------------------------------------------------------------------------------------

_WRITER = """
import sys, time
from pathlib import Path
from ammeter.journal import Journal
from ammeter.wire.frames import Bye, Hello, Schema, Steps
hot = Path(sys.argv[2]) if len(sys.argv) > 2 else None
journal = Journal(Path(sys.argv[1]), hot=hot, hot_bytes=1_000_000 if hot else 0, segment_bytes=2_000)
journal.hello(Hello(run="r", stream="s", schema=Schema()))
for step in range(50):
    journal.append(Steps(step, 1_000 + step, bytes(60)))
print("written", flush=True)
for line in sys.stdin:
    if line == "bye\\n":
        journal.append(Bye("closed", 49, 7))
        journal.close()
        print("closed", flush=True)
"""


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A writer in a process of its own, after 50 rows."""
    words = [sys.executable, "-c", _WRITER, str(tmp_path / "stream"), str(tmp_path / "hot")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout
        assert "written\n" == started.stdout.readline()
        yield started
        started.kill()


def test_a_killed_writer_is_settled_once(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    assert journal.is_alive(folder)
    assert not journal.settle(folder, 9)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, last = journal.segments(folder)[-1]
    with open(last, "ab") as file:
        file.write(encode(row(50), journal.end_of(folder))[:33])
    assert not journal.is_alive(folder)
    assert journal.settle(folder, 9)
    assert not journal.settle(folder, 10)
    assert [*(row(step) for step in range(50)), Bye("lost", 49, 9)] == said(folder)
    assert journal.ended(folder)
    assert contiguous(folder)


def test_a_writer_that_said_goodbye_is_not_settled(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    assert process.stdin
    assert process.stdout
    process.stdin.write("bye\n")
    process.stdin.flush()
    assert "closed\n" == process.stdout.readline()
    assert not journal.is_alive(folder)
    assert not journal.settle(folder, 9)
    assert Bye("closed", 49, 7) == frames(folder)[-1]


def test_what_is_known_of_a_death_is_written_down(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    process.kill()
    process.wait()
    assert journal.settle(folder, 9, journal.Ending("killed by SIGKILL"))
    assert [Bye("lost", 49, 9, "killed by SIGKILL")] == said(folder)[50:]


def test_a_process_that_was_told_to_end_is_not_lost(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    (folder / journal.TERMINATED).write_text("Current thread:\n")
    process.terminate()
    process.wait()
    assert journal.settle(folder, 9, journal.Ending("killed by SIGTERM"))
    assert [Bye("signal", 49, 9, "SIGTERM")] == said(folder)[50:]


def test_who_was_seen_to_end_by_sigterm_is_not_lost_either(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    process.terminate()
    process.wait()
    assert journal.settle(folder, 9, journal.Ending("killed by SIGTERM"))
    assert [Bye("signal", 49, 9, "SIGTERM")] == said(folder)[50:]


def test_a_witness_is_there_as_long_as_its_process_is(tmp_path: Path) -> None:
    assert not journal.has_witness(tmp_path)
    held = journal.lock(journal.witness_path(tmp_path))
    assert held is not None
    assert journal.has_witness(tmp_path)
    journal.unlock(held)
    assert not journal.has_witness(tmp_path)


def test_the_bye_of_a_settled_stream_stands_behind_what_was_acknowledged(
    tmp_path: Path, process: subprocess.Popen[str]
) -> None:
    """A host that went down can lose a tail that the collector has."""
    folder = tmp_path / "stream"
    process.kill()
    process.wait()
    end = journal.end_of(folder)
    journal.acknowledge(folder, end + 500)
    assert journal.settle(folder, 9)
    assert [Bye("lost", 49, 9)] == frames(folder, end + 500)
    assert not journal.settle(folder, 10)
    assert contiguous(folder)


def test_a_stream_whose_segments_are_all_gone_has_nothing_to_settle(
    tmp_path: Path, process: subprocess.Popen[str]
) -> None:
    process.kill()
    process.wait()
    for _, path in journal.segments(tmp_path / "stream"):
        path.unlink()
    assert not journal.settle(tmp_path / "stream", 9)


def test_a_live_writer_in_this_process_keeps_its_lock_when_asked(writer: Journal) -> None:
    assert journal.is_alive(writer.folder)
    assert not journal.settle(writer.folder, 1)
    ask = (
        "import sys; from pathlib import Path; from ammeter import journal; print(journal.is_alive(Path(sys.argv[1])))"
    )
    words = [sys.executable, "-c", ask, str(writer.folder)]
    assert "True\n" == subprocess.run(words, capture_output=True, text=True, check=True).stdout
    writer.close()
    assert "False\n" == subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_the_acknowledged_offset_is_kept_and_an_unreadable_one_counts_as_none(writer: Journal) -> None:
    assert 0 == writer.acknowledged()
    journal.acknowledge(writer.folder, 1_234)
    assert 1_234 == writer.acknowledged()
    (writer.folder / "ack").write_text("x")
    assert 0 == writer.acknowledged()


def test_the_streams_of_a_run_are_those_with_a_lock_file(tmp_path: Path) -> None:
    opened = [Journal(tmp_path / name) for name in ("b", "a")]
    (tmp_path / "no stream").mkdir()
    assert [tmp_path / "a", tmp_path / "b"] == journal.streams(tmp_path)
    for each in opened:
        each.close()


# -- any history -----------------------------------------------------------------------------------------------------

_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("row"), st.integers(0, 400)),
        st.tuples(st.just("event"), st.integers(0, 3)),
        st.tuples(st.just("hello"), st.integers(1, 3)),
        st.tuples(st.just("tear"), st.integers(1, 60)),
        st.tuples(st.just("move"), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=_ACTIONS, hot_bytes=st.sampled_from([0, 2_000]), data=st.data())
def test_any_history_of_a_stream_reads_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], hot_bytes: int, data: st.DataObject
) -> None:
    base = tmp_path_factory.mktemp("any")
    writer = Journal(base / "stream", hot=base / "hot", hot_bytes=hot_bytes, segment_bytes=700)
    writer.hello(HELLO)
    expected: list[Frame] = []
    for step, (action, size) in enumerate(actions):
        if action == "row":
            expected.append(Steps(step, step, bytes(size)))
            assert writer.append(Steps(step, step, bytes(size)))
        elif action == "event":
            expected.append(Event("x.happened", step, step, {"n": "AmJ1" * size}))
            assert writer.append(Event("x.happened", step, step, {"n": "AmJ1" * size}))
        elif action == "hello":
            writer.hello(Hello(run="r", stream="s", schema=Schema(scalars=("scale",) * size)))
        elif action == "move":
            for _, path in journal.segments(writer.folder)[:-1]:
                if path.parent != writer.folder:
                    journal.move(path, writer.folder)
    writer.close()
    tail = next((size for action, size in actions if action == "tear"), 0)
    with open(journal.segments(writer.folder)[-1][1], "ab") as file:
        file.write(encode(row(9), writer.offset)[:tail])
    assert journal.settle(writer.folder, 3)
    assert [*expected, Bye("lost", _last_step(expected), 3)] == said(writer.folder)
    assert contiguous(writer.folder)
    entries = list(journal.read(writer.folder))
    start = data.draw(st.integers(0, len(entries) - 1))
    assert entries[start:] == list(journal.read(writer.folder, entries[start].begin))


def _last_step(written: list[Frame]) -> int:
    return max((frame.step for frame in written if isinstance(frame, Steps)), default=-1)


def test_nothing_is_read_or_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "stream"
    writer = Journal(folder)
    writer.hello(HELLO)
    writer.append(row(0))
    writer.close()
    for name in (f"{journal.end_of(folder):020d}.seg", "ack.tmp"):
        (folder / name).symlink_to(victim)
    assert [row(0)] == said(folder)
    assert journal.settle(folder, 1)
    with pytest.raises(OSError, match="symbolic links"):
        journal.acknowledge(folder, 7)
    assert b"precious" == victim.read_bytes()


@pytest.mark.parametrize("name", ["alive", "hot", "ack", "terminated"])
def test_a_link_or_a_pipe_in_the_place_of_a_note_is_as_good_as_none(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    writer = Journal(folder)
    writer.hello(HELLO)
    writer.append(row(0))
    writer.close()
    held = journal.lock(tmp_path / "elsewhere")
    assert held is not None
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkfifo):
        (tmp_path / "elsewhere").write_text("4096")
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert not journal.is_alive(folder)
        assert journal.hot_folder(folder) is None
        assert 0 == journal.acknowledged(folder)
        assert [row(0)] == said(folder)
    assert journal.is_locked(tmp_path / "elsewhere")
    journal.unlock(held)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o1777])
def test_a_folder_that_was_there_is_used_as_it_is(mode: int, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    assert there == journal.private_folder(there)
    assert mode == there.stat().st_mode & 0o7777


@pytest.mark.parametrize("mode", [0o775, 0o702, 0o777])
def test_a_folder_in_which_others_can_exchange_what_lies_there_is_refused(mode: int, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    with pytest.raises(
        PermissionError, match=f"can be written by others .mode {mode:o}.; chmod go-w it, or set AMMETER"
    ):
        journal.private_folder(there)
    assert mode == there.stat().st_mode & 0o7777


def test_a_folder_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        assert 0o700 == journal.private_folder(tmp_path / "made").stat().st_mode & 0o7777
    finally:
        os.umask(before)


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
    told = [frame.step for frame in said(writer.folder) if isinstance(frame, Event)]
    assert 8_000 == len(said(writer.folder))
    for first in (0, 10_000, 20_000, 30_000):
        assert list(range(first, first + 2_000)) == [step for step in told if first <= step < first + 10_000]


def test_a_turn_that_an_interrupt_took_away_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("ammeter.journal.writer.monotonic", lambda: now[0])
    writer = Journal(tmp_path / "stream")
    writer.hello(HELLO)
    writer._turn.clear()
    for step in range(200):
        writer.append(row(step))
        now[0] += 0.1
    writer.close()
    assert [row(step) for step in range(200)] == said(writer.folder)
