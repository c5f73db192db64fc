"""Changes to segments by processes other than their writer.

Streams of dead writers are ended, closed segments are moved off tmpfs, thinned or dropped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ammeter.journal.layout import (
    OFFSET_LIMIT,
    acknowledged,
    contents,
    open_plain,
    replace,
    segment_path,
    segments,
    size_of,
)
from ammeter.journal.process_lock import lock, unlock
from ammeter.journal.reader import ended, offset_after
from ammeter.wire.codec import encode, scan
from ammeter.wire.frames import REQUESTED_ENDS, Bye, Event, Frame, Lost, Steps

TERMINATED_FILE = "terminated"
"""A file in the stream's folder, not empty once SIGTERM has reached a process that had no handler for it."""


BY_SIGTERM = "killed by SIGTERM"


@dataclass(frozen=True)
class Ending:
    """The known cause of a process's end.

    description: such as "killed by SIGKILL". ended_by: a key of wire.frames.ENDED_BY, or ''. memory_limit: limit of its
    control group in bytes, or 0.
    """

    description: str = ""
    ended_by: str = ""
    memory_limit: int = 0


UNKNOWN_ENDING = Ending()


def end_stream(folder: Path, now: int, ending: Ending = UNKNOWN_ENDING) -> bool:
    """Ends the stream of a dead process: truncates a torn tail and appends bye{lost}, once.

    A process that SIGTERM ended gets bye{signal} instead of bye{lost}.

    Args:
        now: time of the bye, in nanoseconds since the epoch.

    Returns:
        True if this call wrote the bye; False if the writer lives or has written a bye itself.
    """
    file = lock(folder / "alive") if (folder / "alive").exists() else None
    if file is None:
        return False
    try:
        return _append_bye(folder, now, ending)
    finally:
        unlock(file)


def move(path: Path, folder: Path) -> None:
    """Moves a closed segment from tmpfs to the stream's folder.

    Readers always find it in one of the two places.
    """
    if path.parent != folder:
        replace(folder / path.name, contents(path))
        path.unlink()


def mirror(path: Path, folder: Path) -> None:
    """Appends new data of an open segment on tmpfs to its copy on disk."""
    with open_plain(path) as source, open_plain(folder / path.name, os.O_RDWR | os.O_CREAT) as copy:
        size, copied = os.fstat(source.fileno()).st_size, copy.seek(0, os.SEEK_END)
        if copied > size:  # the writer has truncated a partial frame
            copied = copy.truncate(size)
            copy.seek(size)
        source.seek(copied)
        copy.write(source.read())


def thin(path: Path, stride: int) -> None:
    """Rewrites a closed segment with every stride-th step only; 0 keeps none.

    Other frames keep their offsets. A Lost frame at the offset of each hole counts the removed steps.
    """
    pieces: list[bytes] = []
    hole: Lost | None = None
    data = contents(path)
    for position, size, offset, frame in scan(data):
        lost = _thinned(frame, offset, size, stride)
        if lost and hole and hole.end == lost.begin:
            hole = Lost(hole.reason, hole.steps + lost.steps, 0, hole.begin, lost.end)
            continue
        pieces.extend(_encoded(hole))
        hole = lost
        if lost is None:
            pieces.append(data[position : position + size])
    pieces.extend(_encoded(hole))
    replace(path, b"".join(pieces))


def drop(path: Path, end: int) -> None:
    """Replaces a closed segment by one Lost frame with its counts.

    end: the logical offset at which the segment ends.
    """
    steps = events = 0
    start = int(path.stem)
    for _, _, _, frame in scan(contents(path)):
        steps += frame.steps if isinstance(frame, Lost) else isinstance(frame, Steps)
        events += frame.events if isinstance(frame, Lost) else isinstance(frame, Event)
    replace(path, encode(Lost("journal-cap", steps, events, start, end), start))


def _append_bye(folder: Path, now: int, ending: Ending) -> bool:
    listed = segments(folder)
    if not listed or ended(folder):
        return False
    start, path = listed[-1]
    valid_bytes, end, last, flags = 0, start, None, os.O_RDWR
    for position, size, offset, last in scan(contents(path)):
        valid_bytes, end = position + size, offset_after(offset, size, last)
    if isinstance(last, Bye):
        with open_plain(path, os.O_RDWR) as file:
            file.truncate(valid_bytes)
        return False
    delivered = acknowledged(folder)
    if delivered > end:
        # The host crashed and lost a tail that the collector has: the bye must come after it.
        valid_bytes, end, path, flags = 0, delivered, segment_path(folder, delivered), os.O_RDWR | os.O_CREAT
    with open_plain(path, flags) as file:
        file.truncate(valid_bytes)
        file.seek(valid_bytes)
        file.write(encode(_bye(folder, _last_step(listed), now, ending), end))
        file.flush()
        os.fsync(file.fileno())
    return True


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


def _thinned(frame: Frame, offset: int, size: int, stride: int) -> Lost | None:
    """Returns the Lost frame that replaces a frame in thinning; None if the frame stays."""
    if isinstance(frame, Lost) and frame.reason == "journal-thinned":
        return frame
    if isinstance(frame, Steps) and (stride == 0 or frame.step % stride):
        return Lost("journal-thinned", 1, 0, offset, offset + size)
    return None


def _encoded(lost: Lost | None) -> list[bytes]:
    return [encode(lost, lost.begin)] if lost else []
