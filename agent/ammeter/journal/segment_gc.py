"""Changes to segments by processes other than their writer: they are moved off tmpfs, thinned or dropped."""

from __future__ import annotations

import os
from pathlib import Path

from ammeter.journal.layout import contents, open_plain, replace
from ammeter.wire.codec import encode, scan
from ammeter.wire.frames import Event, Frame, Lost, Steps


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


def _thinned(frame: Frame, offset: int, size: int, stride: int) -> Lost | None:
    """Returns the Lost frame that replaces a frame in thinning; None if the frame stays."""
    if isinstance(frame, Lost) and frame.reason == "journal-thinned":
        return frame
    if isinstance(frame, Steps) and (stride == 0 or frame.step % stride):
        return Lost("journal-thinned", 1, 0, offset, offset + size)
    return None


def _encoded(lost: Lost | None) -> list[bytes]:
    return [encode(lost, lost.begin)] if lost else []
