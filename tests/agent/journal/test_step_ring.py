"""A ring has each completed step, whole or not at all, until it is overwritten."""

from __future__ import annotations

import gc
import math
import os
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal, StepRing
from ammeter.journal.step_ring import ABSENT_NUMBER, COLUMNS, RECORDS, RING_FILE
from ammeter.wire.frames import ABSENT, Schema, Steps

BEGIN = 1_760_000_000 * 10**9
RECORD_BYTES, HEADER_BYTES = 128, 1024


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream's folder whose open segment is elsewhere."""
    (tmp_path / "hot").mkdir()
    stream = tmp_path / "stream"
    stream.mkdir()
    (stream / "hot").write_text(str(tmp_path / "hot"))
    return stream


@pytest.fixture
def ring(folder: Path, tmp_path: Path) -> Iterator[StepRing]:
    made = StepRing(tmp_path / "hot")
    yield made
    made.remove()


def numbers(step: int) -> list[float]:
    return [step + place / 16 for place in range(len(COLUMNS))]


def put(ring: StepRing, *steps: int) -> None:
    for step in steps:
        ring.put(step, BEGIN + step, *numbers(step))


def steps(folder: Path) -> list[int]:
    return [completed.step for completed in journal.unwritten_steps(folder)]


def test_a_stored_step_has_its_time_and_numbers(ring: StepRing, folder: Path) -> None:
    put(ring, 0, 1, 2)
    assert [0, 1, 2] == steps(folder)
    newest = journal.unwritten_steps(folder)[-1]
    assert dict(zip(COLUMNS, numbers(2), strict=True)) == newest.numbers
    assert (2, BEGIN + 2) == (newest.step, newest.time) == journal.newest_step(folder)


def test_the_newest_records_remain_when_the_ring_is_full(ring: StepRing, folder: Path) -> None:
    put(ring, *range(3 * RECORDS + 7))
    assert list(range(2 * RECORDS + 7, 3 * RECORDS + 7)) == steps(folder)
    assert 3 * RECORDS + 6 == journal.newest_step(folder)[0]


def test_steps_up_to_the_written_one_are_not_listed(ring: StepRing, folder: Path) -> None:
    put(ring, *range(10))
    ring.mark_written([Steps(5, 0, b""), Steps(6, 0, b"")])
    assert [7, 8, 9] == steps(folder)
    ring.mark_written([Steps(9, 0, b"")])
    assert [] == steps(folder)
    assert 9 == journal.newest_step(folder)[0]


@pytest.mark.parametrize("stored_bytes", range(0, RECORD_BYTES, 8))
def test_a_record_that_is_stored_in_part_is_ignored(
    ring: StepRing, folder: Path, tmp_path: Path, stored_bytes: int
) -> None:
    """As after a kill between two stores: pack_into clears the record, then stores its numbers in order."""
    put(ring, 0, 1, 2)
    path = tmp_path / "hot" / RING_FILE
    at = HEADER_BYTES + 2 * RECORD_BYTES
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data[at : at + stored_bytes].ljust(RECORD_BYTES, b"\0"))
    assert [0, 1] == steps(folder)
    assert 1 == journal.newest_step(folder)[0]


def test_amended_times_replace_the_earlier_ones(ring: StepRing, folder: Path) -> None:
    put(ring, 3)
    ring.amend(3, BEGIN + 99, 0.25, 0.125)
    (completed,) = journal.unwritten_steps(folder)
    assert (BEGIN + 99, 0.25, 0.125) == (
        completed.time,
        completed.numbers["step_seconds"],
        completed.numbers["overhead_seconds"],
    )
    assert numbers(3)[2:] == list(completed.numbers.values())[2:]


def test_a_row_has_measured_values_and_marks_the_others_absent(ring: StepRing, folder: Path) -> None:
    by_name = dict.fromkeys(COLUMNS, ABSENT_NUMBER) | {"loss": math.nan, "scale": 65536.0, "samples": 1e300}
    ring.put(0, BEGIN, *by_name.values())
    (completed,) = journal.unwritten_steps(folder)
    frame = completed.frame(Schema(("scale", "loss", "applied", "user:lr", "samples")))
    scale, loss, applied, logged, samples = (frame.values[at : at + 4] for at in range(0, 20, 4))
    assert struct.pack("<f", 65536.0) == scale
    assert math.isnan(struct.unpack("<f", loss)[0])
    assert ABSENT != loss
    assert ABSENT == applied == logged
    assert struct.pack("<f", math.inf) == samples


def test_a_ring_with_other_columns_is_read_by_their_names(folder: Path, tmp_path: Path) -> None:
    header = struct.pack("<8sIIq", b"AmRing1\n", 48, 2, -1) + b"loss,colour"
    record = struct.pack("<qqddqq", 2, BEGIN, 0.5, 7.0, 0, 2)
    (tmp_path / "hot" / RING_FILE).write_bytes(header.ljust(HEADER_BYTES, b"\0") + bytes(48) + record)
    (completed,) = journal.unwritten_steps(folder)
    assert (1, {"loss": 0.5, "colour": 7.0}) == (completed.step, completed.numbers)


@pytest.mark.parametrize(
    "data",
    [b"", b"AmRing1\n", b"AmRing2\n".ljust(40_000, b"\0"), struct.pack("<8sIIq", b"AmRing1\n", 8, 4000, 0) * 2000],
    ids=["empty", "cut off", "another version", "records without a place"],
)
def test_other_content_is_no_ring(folder: Path, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "hot" / RING_FILE).write_bytes(data)
    assert [] == journal.unwritten_steps(folder)
    assert (-1, 0) == journal.newest_step(folder)


def test_a_stream_without_tmpfs_has_no_ring(tmp_path: Path) -> None:
    assert [] == journal.unwritten_steps(tmp_path)
    assert (-1, 0) == journal.newest_step(tmp_path)
    writer = Journal(tmp_path / "stream")
    assert (None, None) == (writer.ring, writer.ring_error)
    writer.close()


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_ring_for_which_there_is_no_room_is_an_error_at_once_and_leaves_no_file(tmp_path: Path) -> None:
    with file_size_limit(16_000):
        writer = Journal(tmp_path / "stream", hot=tmp_path / "hot", hot_bytes=8_000)
    assert writer.ring is None
    assert isinstance(writer.ring_error, OSError)
    assert not (tmp_path / "hot" / RING_FILE).exists()
    writer.append(Steps(0, BEGIN, b""))
    writer.close()


def test_all_pages_of_a_ring_are_allocated_and_private(ring: StepRing, tmp_path: Path) -> None:
    status = (tmp_path / "hot" / RING_FILE).stat()
    assert status.st_size <= 512 * status.st_blocks
    assert 36 * 1024 >= status.st_size
    assert 0o600 == status.st_mode & 0o777


def test_a_removed_ring_takes_stores_and_frees_its_memory(ring: StepRing, folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "hot" / RING_FILE)
    assert path in Path("/proc/self/maps").read_text()
    put(ring, 0)
    ring.remove()
    gc.collect()
    assert path not in Path("/proc/self/maps").read_text()
    put(ring, 1)
    ring.amend(1, BEGIN, 0.0, 0.0)
    ring.mark_written([Steps(1, BEGIN, b"")])
    assert [] == steps(folder)


def test_a_ring_has_no_descriptor_that_the_program_could_close(ring: StepRing, folder: Path) -> None:
    targets = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _exists(name)]
    assert [] == [target for target in targets if target.endswith(f"/{RING_FILE}")]


def _exists(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_a_detached_ring_no_longer_changes_the_file(ring: StepRing, folder: Path) -> None:
    put(ring, 0)
    ring.detach()
    put(ring, 1)
    assert [0] == steps(folder)


def test_closing_the_journal_removes_the_ring(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", hot=tmp_path / "hot", hot_bytes=8_000)
    assert (tmp_path / "hot" / RING_FILE).exists()
    writer.close()
    assert not (tmp_path / "hot" / RING_FILE).exists()


def test_leaving_tmpfs_removes_the_ring(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", hot=tmp_path / "hot", hot_bytes=8_000)
    writer.leave_tmpfs()
    assert not (tmp_path / "hot" / RING_FILE).exists()
    writer.close()
