"""Journals that somebody else has had hands on: report and ship tell what can be told, and neither hangs nor fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ammeter import journal
from ammeter.journal import segment_path
from ammeter.report import diagnosis
from ammeter.shipper.packing import build_payload
from ammeter.wire import codec
from ammeter.wire import frames as wire
from ammeter.wire.frames import Event, Frame, Hello, Lost, Schema, Steps, Tensor

SCHEMA = Schema(tuple(wire.SCALARS), ("grad.norm",), (Tensor("w", (2, 3), "float32"),))
STREAM = "0" * 32
HELLO = Hello("5f3c0f2e-0000-4000-8000-000000000000", STREAM, SCHEMA, started=10**18)
ROW = np.ones(SCHEMA.width, "<f4").tobytes()
HEALTHY: tuple[Frame, ...] = (HELLO, *(Steps(step, 10**18 + step, ROW) for step in range(20)))


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    folder = tmp_path / "run" / STREAM
    folder.mkdir(parents=True)
    (folder / "alive").touch()
    write(folder, *HEALTHY)
    return folder


def write(folder: Path, *frames: Frame) -> None:
    data = b""
    for frame in frames:
        data += codec.encode(frame, len(data))
    segment_path(folder, 0).write_bytes(data)


def behind(stream: Path) -> Path:
    return segment_path(stream, segment_path(stream, 0).stat().st_size)


FILES: dict[str, Callable[[Path], object]] = {
    "a segment that is a folder": lambda stream: behind(stream).mkdir(),
    "a segment that is a pipe": lambda stream: os.mkfifo(behind(stream)),
    "a segment that leads to itself": lambda stream: behind(stream).symlink_to(behind(stream)),
    "a segment that leads to a device": lambda stream: behind(stream).symlink_to("/dev/zero"),
    "a segment of garbage": lambda stream: behind(stream).write_bytes(b"AmJ1" * 10_000),
    "segments without a number": lambda stream: [
        (stream / f"{name}.seg").write_bytes(b"x") for name in ("", "abc", "-5", "\u0663" * 20, "9" * 20, "9" * 240)
    ],
    "a hot folder with a NUL": lambda stream: (stream / "hot").write_bytes(b"/tmp/\x00"),
    "a hot folder that is no text": lambda stream: (stream / "hot").write_bytes(b"\xff\xfe"),
    "a hot folder that is a folder": lambda stream: (stream / "hot").mkdir(),
}


@pytest.mark.parametrize("name", FILES)
def test_what_else_lies_in_the_folder_does_not_keep_the_run_from_being_told(stream: Path, name: str) -> None:
    FILES[name](stream)
    assert 20 == diagnosis.diagnose(stream.parent).as_json()["summary"]["steps"]
    assert 21 == sum(not isinstance(entry.frame, Lost) for entry in journal.read(stream))


@pytest.mark.parametrize("ack", [b"-5", b"9" * 30, b"9" * 5000, b"\xff", b"1e3", b""])
def test_an_acknowledgement_that_cannot_be_is_none(stream: Path, ack: bytes) -> None:
    (stream / "ack").write_bytes(ack)
    assert 0 == journal.acknowledged(stream)


def test_an_acknowledgement_that_is_a_folder_is_none(stream: Path) -> None:
    (stream / "ack").mkdir()
    assert 0 == journal.acknowledged(stream)


def test_a_stream_is_told_by_a_file_of_its_lock(stream: Path) -> None:
    (stream / "alive").unlink()
    (stream / "alive").mkdir()
    assert [] == journal.streams(stream.parent)


WIDE = Schema((), tuple(map(str, range(3000))), tuple(Tensor(str(index), (), "f") for index in range(6000)))
ROWS: dict[str, tuple[Frame, ...]] = {
    "a step beyond int64": (Steps(2**64 - 1, 1, ROW),),
    "a step below 0": (Steps(-(2**63), 1, ROW),),
    "a time beyond int64": (Steps(30, 2**64 - 1, ROW),),
    "half a number": (Steps(30, 10**18, ROW[:-1]),),
    "more columns than there are": (Steps(30, 10**18, ROW * 2),),
    "more columns than memory": (Hello(HELLO.run, STREAM, WIDE), Steps(30, 10**18, b"")),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_that_cannot_be_is_counted_and_costs_no_other(stream: Path, name: str) -> None:
    write(stream, *HEALTHY, *ROWS[name])
    summary = diagnosis.diagnose(stream.parent).as_json()["summary"]
    assert (20, {"steps": 1, "events": 0}) == (summary["steps"], summary["lost"]["no-schema"])
    packed = build_payload(list(journal.read(stream)), None)
    assert ["no-schema"] == [gap.reason for gap in packed.gaps]


def test_a_loss_that_claims_all_offsets_hides_nothing_behind_it(stream: Path) -> None:
    write(stream, *HEALTHY, Lost("a", 1, 1, 5, 2**64 - 1), Event("a.b", 19, 10**18))
    assert isinstance(list(journal.read(stream))[-1].frame, Event)
    assert journal.end_of(stream) < 2**20
