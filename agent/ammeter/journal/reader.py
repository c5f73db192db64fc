"""Reads the frames of a stream from a logical offset on.

Holes become Lost entries. A stream can be read while it is written and moved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from ammeter.journal.layout import OFFSET_LIMIT, open_plain, segments, size_of
from ammeter.wire.codec import HEADER_BYTES, offset_in, scan, seek
from ammeter.wire.frames import Bye, Frame, Hello, Lost

_TAIL_BYTES = 64 * 2**10
"""Size of a segment's end that is read to find out whether its last frame is a bye."""


class Entry(msgspec.Struct, frozen=True):
    """One frame with its logical offsets [begin, end).

    A hole is an Entry with a Lost frame.
    """

    begin: int
    end: int
    frame: Frame


def read(folder: Path, offset: int = 0, limit_bytes: int | None = None) -> Iterator[Entry]:
    """Yields a stream's entries from a logical offset to its current end.

    Holes are Lost entries. The iteration stops after about limit_bytes. It is safe while the stream is written and
    while closed segments are moved.
    """
    expected, budget = offset, limit_bytes
    listed = segments(folder)
    if listed and listed[0][0] > expected:
        yield _hole("journal-deleted", expected, listed[0][0])
        expected = listed[0][0]
    for index, (start, path) in enumerate(listed):
        next_start = listed[index + 1][0] if index + 1 < len(listed) else None
        if next_start is not None and next_start <= expected:
            continue
        if next_start is None and start + size_of(path) <= expected:
            return
        for entry in _entries(load(path, folder, start, expected), expected):
            yield entry
            expected = entry.end
            if budget is not None:
                budget -= entry.end - entry.begin
                if budget <= 0:
                    return
        if next_start is not None and expected < next_start:
            yield _hole("torn", expected, next_start)
            expected = next_start


def end_of(folder: Path) -> int:
    """Returns the logical offset after the stream's last whole frame."""
    listed = segments(folder)
    end = listed[-1][0] if listed else 0
    for start, path in listed[-1:]:
        for _, size, offset, frame in scan(load(path, folder, start)):
            end = offset_after(offset, size, frame)
    return end


def written_offset(folder: Path) -> int:
    """Returns the logical offset of the last written byte, including a torn tail.

    Needs only file sizes; reads no content.
    """
    listed = segments(folder)
    return listed[-1][0] + size_of(listed[-1][1]) if listed else 0


def ended(folder: Path) -> bool:
    """Returns whether the stream's last frame is a bye; the stream is then complete."""
    for _, path in segments(folder)[-1:]:
        with _open_segment(path, folder) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
        for position, length, _, frame in scan(tail):
            if isinstance(frame, Bye) and position + length == len(tail):
                return True
    return False


def schema_before(folder: Path, offset: int) -> Hello | None:
    """Returns the hello that applies at a logical offset, for readers that start mid-stream.

    At the very beginning, before any hello, returns the first one.
    """
    listed = segments(folder)
    for start, path in reversed([(start, path) for start, path in listed if start < offset]):
        hellos = [frame for hello_offset, frame in _hellos(path, folder, start) if hello_offset < offset]
        if hellos:
            return hellos[-1]
    for start, path in listed:
        for _, frame in _hellos(path, folder, start):
            return frame
    return None


def offset_after(offset: int, size: int, frame: Frame) -> int:
    """Returns the offset at which the next frame begins; a Lost frame may cover more than its own bytes."""
    return frame.end if isinstance(frame, Lost) and frame.begin < frame.end < OFFSET_LIMIT else offset + size


def load(path: Path, folder: Path, start: int, expected: int = 0) -> bytes:
    """Returns a segment's bytes from `expected` on, if an untouched segment has a frame there.

    Otherwise returns the whole segment, because it was thinned or is torn there. Returns nothing for a segment that was
    deleted meanwhile.
    """
    try:
        with _open_segment(path, folder) as file:
            skip = max(0, expected - start)
            file.seek(skip)
            if skip and offset_in(file.read(HEADER_BYTES)) != expected:
                skip = 0
            file.seek(skip)
            return file.read()
    except FileNotFoundError:
        return b""


def _open_segment(path: Path, folder: Path) -> BinaryIO:
    """Opens a segment that may be moving to the stream's folder.

    Raises FileNotFoundError if it is gone.
    """
    try:
        return open_plain(path)
    except FileNotFoundError:
        return open_plain(folder / path.name)


def _entries(data: bytes, expected: int) -> Iterator[Entry]:
    for _, size, offset, frame in scan(data, seek(data, expected)):
        end = offset_after(offset, size, frame)
        if end <= expected:
            continue
        if offset > expected:
            yield _hole("torn", expected, offset)
        yield Entry(max(offset, expected), end, frame)
        expected = end


def _hellos(path: Path, folder: Path, start: int) -> Iterator[tuple[int, Hello]]:
    for _, _, offset, frame in scan(load(path, folder, start)):
        if isinstance(frame, Hello):
            yield offset, frame


def _hole(reason: str, begin: int, end: int) -> Entry:
    return Entry(begin, end, Lost(reason, begin=begin, end=end))
