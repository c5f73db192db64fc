"""The newest completed steps of a stream, in a file of shared memory that outlives the writer.

A row waits up to a tenth of a second before it is written, because a write() per step would be expensive. The ring
stores the numbers of each step with one copy in memory when the step completes. The process that ends the stream of a
killed writer appends the steps that the journal lacks. The shipper reads the newest step of a writer that hangs.

The file `ring` is beside the open segment on tmpfs: memory pages on a disk can make a store wait for the disk. All its
pages are allocated at the creation, so that a full file system is an error then and never a SIGBUS later.

    header   magic, bytes per record, number of records, the newest step that the journal has, names of the columns
    records  step + 1, time, one float64 per column, step + 1

A record whose two step numbers differ is incomplete: the last one is stored last. Step N is record N modulo their
number.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ammeter.journal.layout import OFFSET_LIMIT, contents, hot_folder
from ammeter.journal.process_lock import above_standard
from ammeter.wire.frames import ABSENT, Frame, Schema, Steps

RING_FILE = "ring"

RECORDS = 256
"""More than the steps that wait for their write(): 97 on the fast path, and 65 for device data."""

COLUMNS = (
    *("step_seconds", "overhead_seconds", "calls_followed", "applied", "skipped", "loss", "micro_batches"),
    *("samples", "tokens", "scale", "growth_tracker", "found_inf"),
)
"""The columns of a record, in order: all that is known on the host when a step completes."""

_ABSENT_BITS = 0x7FF8A3A3A3A3A3A3
ABSENT_NUMBER: float = struct.unpack("<d", struct.pack("<Q", _ABSENT_BITS))[0]
"""Stands for a value that was not measured: a NaN with reserved bits, so that a real NaN remains data."""

_MAGIC = b"AmRing1\n"
_HEADER = struct.Struct("<8sIIq")
_WRITTEN_AT = 16
_HEADER_BYTES = 1024
_RECORD = struct.Struct(f"<qq{len(COLUMNS)}d8xq")
_RECORD_BYTES, _pack = _RECORD.size, _RECORD.pack_into
_START = struct.Struct("<qq")
_MARK = struct.Struct("<q")
_FILE_BYTES = _HEADER_BYTES + RECORDS * _RECORD.size

_CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class StepRing:
    """The ring of a writer."""

    def __init__(self, folder: Path) -> None:
        """Creates the file.

        Raises:
            OSError: the file system is full, or cannot map files.
        """
        self._path = folder / RING_FILE
        self._memory: Any = _mapped(self._path)
        view = memoryview(self._memory).cast("B")
        names = ",".join(COLUMNS).encode()
        view[_HEADER.size : _HEADER.size + len(names)] = names
        _HEADER.pack_into(view, 0, _MAGIC, _RECORD.size, RECORDS, -1)
        self._view(view)

    def _view(self, view: memoryview) -> None:
        """Views the memory as numbers of eight bytes, which are stored whole."""
        self._integers, self._floats = view.cast("q"), view.cast("d")

    def put(self, step: int, time_ns: int, *numbers: float) -> None:
        """Stores a completed step: its time and one number per column."""
        _pack(self._memory, _HEADER_BYTES + step % RECORDS * _RECORD_BYTES, step + 1, time_ns, *numbers, step + 1)

    def amend(self, step: int, time_ns: int, step_seconds: float, overhead_seconds: float) -> None:
        """Changes the times of a stored step.

        The record remains complete at every moment, because each number is stored by itself.
        """
        at = (_HEADER_BYTES + step % RECORDS * _RECORD.size) // 8
        self._integers[at + 1] = time_ns
        self._floats[at + 2], self._floats[at + 3] = step_seconds, overhead_seconds

    def mark_written(self, frames: Sequence[Frame]) -> None:
        """Records that the rows among these frames were written, or counted as lost."""
        for frame in reversed(frames):
            if type(frame) is Steps:
                self._integers[_WRITTEN_AT // 8] = frame.step
                return

    def detach(self) -> None:
        """Makes all later stores go to private memory, such as in a forked child."""
        self._memory = bytearray(_FILE_BYTES)
        self._view(memoryview(self._memory))

    def remove(self) -> None:
        """Removes the file; later stores have no effect."""
        self.detach()
        with suppress(OSError):
            self._path.unlink()


def create_ring(folder: Path | None) -> tuple[StepRing | None, OSError | None]:
    """Returns the ring in this folder, or why it could not be created; neither without a folder."""
    try:
        return (StepRing(folder) if folder is not None else None), None
    except OSError as error:
        return None, error


class CompletedStep(msgspec.Struct, frozen=True):
    """A step that its writer has completed.

    numbers: column -> measured value.
    """

    step: int
    time: int
    numbers: dict[str, float]

    def frame(self, schema: Schema) -> Steps:
        """Returns the row of the step."""
        values = (_float32(self.numbers[name]) if name in self.numbers else ABSENT for name in schema.scalars)
        return Steps(self.step, self.time, b"".join(values))


def unwritten_steps(folder: Path) -> list[CompletedStep]:
    """Returns the completed steps that the writer of a stream has not written yet, in order.

    Args:
        folder: the stream's folder. Read the journal after this call: a live writer may write the same steps meanwhile.
    """
    data = _content(folder)
    written = _HEADER.unpack_from(data)[3] if data else -1
    return [_completed(data, step, position) for step, position in sorted(_records(data)) if step > written]


def newest_step(folder: Path) -> tuple[int, int]:
    """Returns (number, time) of the newest completed step of a stream; (-1, 0) if no ring shows one."""
    data = _content(folder)
    step, position = max(_records(data), default=(-1, 0))
    return (step, _START.unpack_from(data, position)[1]) if step >= 0 else (-1, 0)


def has_ring(folder: Path) -> bool:
    hot = hot_folder(folder)
    return hot is not None and (hot / RING_FILE).exists()


def remove_ring(folder: Path) -> None:
    """Removes the ring of a stream whose writer is gone."""
    hot = hot_folder(folder)
    if hot is not None:
        (hot / RING_FILE).unlink(missing_ok=True)


def _content(folder: Path) -> bytes:
    """Returns the content of a stream's ring; nothing without a ring of this format."""
    hot = hot_folder(folder)
    try:
        data = contents(hot / RING_FILE) if hot is not None else b""
    except OSError:
        return b""
    if len(data) < _HEADER_BYTES:
        return b""
    magic, record_bytes, records, _ = _HEADER.unpack_from(data)
    needed = _START.size + 8 * len(_columns(data)) + _MARK.size
    is_whole = record_bytes >= needed and len(data) == _HEADER_BYTES + records * record_bytes
    return data if magic == _MAGIC and is_whole else b""


def _columns(data: bytes) -> list[str]:
    return data[_HEADER.size : _HEADER_BYTES].rstrip(b"\0").decode("ascii", "replace").split(",")


def _records(data: bytes) -> Iterator[tuple[int, int]]:
    """Yields (step, position) of the complete records."""
    if not data:
        return
    _, record_bytes, records, _ = _HEADER.unpack_from(data)
    for index in range(records):
        position = _HEADER_BYTES + index * record_bytes
        mark, time_ns = _START.unpack_from(data, position)
        (end_mark,) = _MARK.unpack_from(data, position + record_bytes - _MARK.size)
        if mark == end_mark and 0 < mark < OFFSET_LIMIT and (mark - 1) % records == index and time_ns >= 0:
            yield mark - 1, position


def _completed(data: bytes, step: int, position: int) -> CompletedStep:
    columns = _columns(data)
    numbers = struct.unpack_from(f"<{len(columns)}d", data, position + _START.size)
    bits = struct.unpack_from(f"<{len(columns)}Q", data, position + _START.size)
    measured = {name: number for name, number, own in zip(columns, numbers, bits, strict=True) if own != _ABSENT_BITS}
    return CompletedStep(step, _START.unpack_from(data, position)[1], measured)


def _float32(number: float) -> bytes:
    try:
        return struct.pack("<f", number)
    except OverflowError:  # as numpy converts it
        return struct.pack("<f", math.copysign(math.inf, number))


def _mapped(path: Path) -> Any:
    """Creates a file with all its pages and maps it.

    mmap.mmap would keep a descriptor and close it at its own end. A program that closes all its descriptors may have
    another file by that number then.
    """
    file = above_standard(os.open(path, _CREATE, 0o600))
    try:
        os.posix_fallocate(file, 0, _FILE_BYTES)
        address = _mmap(None, _FILE_BYTES, mmap.PROT_READ | mmap.PROT_WRITE, _SHARED, file, 0)
        if address == _MAP_FAILED:
            raise OSError(ctypes.get_errno(), "the ring of completed steps cannot be mapped", str(path))
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(file)
    memory = (ctypes.c_char * _FILE_BYTES).from_address(address)
    unmapping = weakref.finalize(memory, _munmap, address, _FILE_BYTES)
    unmapping.atexit = False  # the process ends anyway
    return memory


_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap = _libc.mmap, _libc.munmap
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value
_SHARED = mmap.MAP_SHARED | mmap.MAP_POPULATE
"""MAP_POPULATE: no store in a training step meets a page for the first time."""
