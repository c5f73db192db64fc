"""Ends streams of dead writers: appends the steps that they completed and did not write, and the final record."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ammeter.journal.layout import (
    OFFSET_LIMIT,
    acknowledged,
    contents,
    open_plain,
    segment_path,
    segments,
    size_of,
)
from ammeter.journal.process_lock import lock, unlock
from ammeter.journal.reader import ended, offset_after
from ammeter.journal.segment_gc import move
from ammeter.journal.step_ring import has_ring, unwritten_steps
from ammeter.wire.codec import encode, scan
from ammeter.wire.frames import REQUESTED_ENDS, Bye, Frame, Hello, Schema, Steps

TERMINATED_FILE = "terminated"
"""A file in the stream's folder, not empty once SIGTERM has reached a process that had no handler for it."""

BY_SIGTERM = "killed by SIGTERM"


class Ending(msgspec.Struct, frozen=True):
    """The known cause of a process's end.

    description: such as "killed by SIGKILL". ended_by: a key of wire.frames.ENDED_BY, or ''. memory_limit: limit of its
    control group in bytes, or 0.
    """

    description: str = ""
    ended_by: str = ""
    memory_limit: int = 0


UNKNOWN_ENDING = Ending()


class _Tail(msgspec.Struct, frozen=True):
    """The end of a journal.

    path: the segment to append to, `is_new` if it does not exist yet. valid_bytes: its size without a torn frame.
    offset: the logical offset there. schema: that of its last hello. last_step: the newest row of the stream, or -1.
    """

    path: Path
    valid_bytes: int
    offset: int
    schema: Schema | None
    last_step: int
    is_new: bool = False


def end_stream(folder: Path, now: int, ending: Ending = UNKNOWN_ENDING) -> bool:
    """Ends the stream of a dead process: appends its last steps and bye{lost}, once.

    A torn tail is truncated. A process that SIGTERM ended gets bye{signal} instead of bye{lost}.

    Args:
        now: time of the bye, in nanoseconds since the epoch.

    Returns:
        True if this call wrote the bye; False if the writer lives or has written a bye itself.
    """
    file = lock(folder / "alive") if (folder / "alive").exists() else None
    if file is None:
        return False
    try:
        tail = _tail(folder)
        if tail is None:
            return False
        rows = _missing_rows(folder, tail)
        last_step = rows[-1].step if rows else tail.last_step
        _append(tail, folder, [*rows, _bye(folder, last_step, now, ending)])
        return True
    finally:
        unlock(file)


def recover_steps(folder: Path) -> bool:
    """Appends the last steps of a dead writer to its journal, without a final record.

    Returns:
        Whether nothing remains to be recovered; False while another process holds the writer's lock.

    Raises:
        OSError: the steps could not be written.
    """
    if not has_ring(folder) or ended(folder):
        return True
    file = lock(folder / "alive")
    if file is None:
        return False
    try:
        tail = _tail(folder)
        rows = _missing_rows(folder, tail) if tail else []
        if tail and rows:
            _append(tail, folder, rows)
        return True
    finally:
        unlock(file)


def _tail(folder: Path) -> _Tail | None:
    """Returns the end of a journal; None if it has no segment, or ends with a bye.

    Bytes after a bye are truncated.
    """
    listed = segments(folder)
    if not listed or ended(folder):
        return None
    start, path = listed[-1]
    valid_bytes, end, last, schema = 0, start, None, None
    for position, size, offset, last in scan(contents(path)):
        valid_bytes, end = position + size, offset_after(offset, size, last)
        schema = last.schema if isinstance(last, Hello) else schema
    if isinstance(last, Bye):
        with open_plain(path, os.O_RDWR) as file:
            file.truncate(valid_bytes)
        return None
    delivered = acknowledged(folder)
    if delivered > end:
        # The host crashed and lost a tail that the collector has: the bye must come after it.
        return _Tail(segment_path(folder, delivered), 0, delivered, None, _last_step(listed), is_new=True)
    return _Tail(path, valid_bytes, end, schema, _last_step(listed))


def _missing_rows(folder: Path, tail: _Tail) -> list[Steps]:
    """Returns the rows that the ring has and the journal lacks."""
    if tail.schema is None:
        return []
    return [step.frame(tail.schema) for step in unwritten_steps(folder) if step.step > tail.last_step]


def _append(tail: _Tail, folder: Path, frames: Sequence[Frame]) -> None:
    """Appends frames after the last whole frame, with one write().

    If that fails on tmpfs, the segment first moves to the disk.
    """
    pieces: list[bytes] = []
    end = tail.offset
    for frame in frames:
        pieces.append(encode(frame, end))
        end += len(pieces[-1])
    data = b"".join(pieces)
    flags = os.O_RDWR | (os.O_CREAT if tail.is_new else 0)
    try:
        _write(tail.path, flags, tail.valid_bytes, data)
    except OSError:
        if tail.path.parent == folder:
            raise
        move(tail.path, folder)
        _write(folder / tail.path.name, flags, tail.valid_bytes, data)


def _write(path: Path, flags: int, start: int, data: bytes) -> None:
    with open_plain(path, flags) as file:
        file.truncate(start)
        file.seek(start)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _bye(folder: Path, step: int, now: int, ending: Ending) -> Bye:
    cause: dict[str, Any] = {"ended_by": ending.ended_by, "memory_limit": ending.memory_limit}
    if ending.ended_by in REQUESTED_ENDS:
        return Bye("signal", step, now, ending.description, **cause)
    if size_of(folder / TERMINATED_FILE) > 0 or ending.description == BY_SIGTERM:
        return Bye("signal", step, now, "SIGTERM")
    return Bye("lost", step, now, ending.description, **cause)


def _last_step(listed: list[tuple[int, Path]]) -> int:
    for _, path in reversed(listed):
        steps = [frame.step for _, _, _, frame in scan(contents(path)) if isinstance(frame, Steps)]
        valid_steps = [step for step in steps if 0 <= step < OFFSET_LIMIT]
        if valid_steps:
            return valid_steps[-1]
    return -1
