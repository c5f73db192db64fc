"""Rows and events for journals, and what a reader finds in them."""

from __future__ import annotations

from pathlib import Path

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.frames import Event, Frame, Hello, Schema, Steps

HELLO = Hello(run="r", stream="s", schema=Schema())


def row(step: int, size: int = 60) -> Steps:
    return Steps(step, 1_000 + step, bytes(size))


def event(step: int) -> Event:
    return Event("step.skipped", step, 1_000 + step, {"scale": 65536.0, "consecutive": 1})


def frames(folder: Path, offset: int = 0) -> list[Frame]:
    return [entry.frame for entry in journal.read(folder, offset)]


def recorded(folder: Path, offset: int = 0) -> list[Frame]:
    """Everything but the hellos that head the segments."""
    return [frame for frame in frames(folder, offset) if not isinstance(frame, Hello)]


def contiguous(folder: Path) -> bool:
    entries = list(journal.read(folder))
    return [entry.begin for entry in entries] == [0] + [entry.end for entry in entries[:-1]]


def hot_writer(tmp_path: Path, segment_bytes: int = 2_000) -> tuple[Path, Journal]:
    hot = tmp_path / "hot"
    writer = Journal(tmp_path / "stream", hot=hot, hot_bytes=8_000, segment_bytes=segment_bytes)
    writer.hello(HELLO)
    return hot, writer
