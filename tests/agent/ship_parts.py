"""A stream to ship, a wait with a deadline, and the check that everything was delivered once."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.frames import SCALARS, Event, Frame, Hello, Lost, Schema, Steps
from tests.agent.collector_double import CollectorDouble

RUN = "5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d11"
STREAM = "5d3c9bb1f7a64a19a5ad5b9e5d3c9bb1"
COLUMNS = 15
"""Fixed, whatever the present schema has: some tests count bytes."""
SCHEMA = Schema(tuple(SCALARS)[:COLUMNS])


def hello(stream: str = STREAM, host: str = "here") -> Hello:
    return Hello(run=RUN, stream=stream, schema=SCHEMA, host=host)


def row(step: int) -> Steps:
    return Steps(step, 1_000_000 + step, struct.pack(f"<{COLUMNS}f", *(step + n for n in range(COLUMNS))))


def event(step: int) -> Event:
    return Event("step.skipped", step, 1_000_000 + step, {"scale": 65536.0, "consecutive": 1})


def writer(run_folder: Path, stream: str = STREAM, *, segment_bytes: int = 100_000) -> Journal:
    """A journal that begins with its hello."""
    opened = Journal(run_folder / stream, segment_bytes=segment_bytes)
    opened.hello(hello(stream))
    return opened


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Returns once the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"still not so after {seconds} s"
        time.sleep(0.005)


def present_frames(folder: Path) -> list[Frame]:
    """The frames that a journal still has, without the ranges that were removed."""
    return [entry.frame for entry in journal.read(folder) if not _is_range(entry.frame)]


def assert_delivered_once(double: CollectorDouble, folder: Path) -> None:
    """Everything in the journal is at the collector, in order, once; the rest is reported as gaps."""
    stream = folder.name
    assert present_frames(folder) == double.frames(stream)
    covered = double.covered[stream]
    assert [0, *(end for _, end in covered)] == [*(begin for begin, _ in covered), journal.end_of(folder)]
    removed = [entry.frame for entry in journal.read(folder) if _is_range(entry.frame)]
    assert removed == double.gaps[stream]


def _is_range(frame: Frame) -> bool:
    return isinstance(frame, Lost) and frame.begin < frame.end
