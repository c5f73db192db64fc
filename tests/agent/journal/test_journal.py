"""The record of a stream: nothing written is lost or told twice, whatever happens to its writer and its files."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ammeter import journal
from ammeter.journal import Journal, layout
from ammeter.wire.codec import encode
from ammeter.wire.frames import Bye, Event, Frame, Hello, Lost, Schema, Steps
from tests.agent.journal.journals import HELLO, contiguous, event, frames, hot_writer, recorded, row


def test_what_is_appended_is_read_back_in_order(writer: Journal) -> None:
    written: list[Frame] = [row(0), event(0), row(1), Bye("closed", 1, 5)]
    assert all(writer.append(frame) for frame in written)
    assert [HELLO, *written] == frames(writer.folder)
    assert writer.offset == journal.end_of(writer.folder) == journal.written_offset(writer.folder)


def test_every_segment_begins_with_a_hello_and_is_named_by_its_offset(writer: Journal) -> None:
    for step in range(100):
        writer.append(row(step))
    listed = journal.segments(writer.folder)
    assert len(listed) > 3
    for start, path in listed:
        assert f"{start:020d}" == path.stem
        assert next(journal.read(writer.folder, start)).frame == HELLO
    assert [row(step) for step in range(100)] == recorded(writer.folder)
    assert contiguous(writer.folder)


def test_a_reader_can_start_at_any_frame_and_stop_after_some_bytes(writer: Journal) -> None:
    for step in range(60):
        writer.append(row(step))
    entries = list(journal.read(writer.folder))
    for index in range(0, len(entries), 7):
        assert entries[index:] == list(journal.read(writer.folder, entries[index].begin))
    few = list(journal.read(writer.folder, limit_bytes=500))
    assert entries[: len(few)] == few
    assert few[-1].begin < 500 <= few[-1].end
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
    assert 0 == journal.end_of(writer.folder) == journal.written_offset(writer.folder)
    assert journal.schema_before(writer.folder, 0) is None
    writer.close()
    assert not journal.end_stream(writer.folder, 1)


def test_a_torn_tail_is_not_read_until_it_is_whole(writer: Journal) -> None:
    writer.append(row(0))
    (_, path), data = journal.segments(writer.folder)[-1], encode(row(1), writer.offset)
    for cut in (1, 19, 21, len(data) - 1):
        whole = path.read_bytes()
        path.write_bytes(whole + data[:cut])
        assert [row(0)] == recorded(writer.folder)
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
    assert [row(0), row(1), hole, row(3), row(4)] == recorded(writer.folder)
    assert contiguous(writer.folder)


def test_bytes_that_look_like_a_header_inside_a_row_change_nothing(writer: Journal) -> None:
    tricky = Steps(1, 1, b"AmJ1" * 40 + encode(row(7), 5))
    writer.append(row(0))
    writer.append(tricky)
    writer.append(row(2))
    assert [row(0), tricky, row(2)] == recorded(writer.folder)


def test_a_moved_segment_is_found_by_who_listed_it_before(tmp_path: Path) -> None:
    _, writer = hot_writer(tmp_path)
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
    hot, writer = hot_writer(tmp_path, segment_bytes=1_000)
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
    looks, listed = itertools.count(), layout._list_segments
    monkeypatch.setattr(layout, "_list_segments", look)
    seen = [entry.frame for entry in journal.read(writer.folder)]
    there = [frame for frame in seen if not isinstance(frame, Hello)]
    assert 10 <= len(there) <= 50, "a segment that was begun after the looks may come with the next reading"
    assert [row(step) for step in range(len(there))] == there, "and what came has no hole"
    writer.close()


def test_reading_while_segments_are_written_and_moved_loses_nothing(tmp_path: Path) -> None:
    _, writer = hot_writer(tmp_path, segment_bytes=1_000)
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
    assert journal.end_stream(writer.folder, 3)
    assert [*expected, Bye("lost", _last_step(expected), 3)] == recorded(writer.folder)
    assert contiguous(writer.folder)
    entries = list(journal.read(writer.folder))
    start = data.draw(st.integers(0, len(entries) - 1))
    assert entries[start:] == list(journal.read(writer.folder, entries[start].begin))


def _last_step(written: list[Frame]) -> int:
    return max((frame.step for frame in written if isinstance(frame, Steps)), default=-1)
