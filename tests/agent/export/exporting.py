"""Runs to export, and what each target has to contain of them, read from the frames by hand."""

from __future__ import annotations

import json
import math
import struct
import uuid
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ammeter.__main__ import main
from ammeter.journal import Journal
from ammeter.wire.frames import ABSENT, Event, Frame, Hello, Schema, Steps, Tensor
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import SECOND, Stream, warm

STEPS = 10_000
DAY = 86_400 * SECOND

Rows = dict[tuple[str, int], dict[str, float]]
"""(stream, step) -> measured values by signal; an absent one is not there."""

SPECIAL = (math.nan, math.inf, -math.inf, -0.0, 1e-45, 3.4028235e38, 0.1, 1 / 3, 16777216.0)
"""Values that a careless conversion changes: none, signed zero, the smallest and the largest of float32, a third."""


def long_run() -> Stream:
    """A run of 10,000 steps with readings of every kind, and every special value in a column of the program."""
    stream = warm(STEPS - 200)
    for step in range(200):
        stream.bad(65536.0, inf=step % 2 == 0) if step % 50 == 0 else stream.good(65536.0, norm=1 / (step + 3))
    schema = msgspec.structs.replace(stream.schema, scalars=(*stream.schema.scalars, "own"))
    shift = len(stream.schema.scalars)
    frames: list[Frame] = []
    for frame in stream.frames:
        if isinstance(frame, Hello):
            frames.append(msgspec.structs.replace(frame, schema=schema))
        elif isinstance(frame, Steps):
            own = ABSENT if frame.step % 4 == 3 else struct.pack("<f", SPECIAL[frame.step % len(SPECIAL)])
            values = frame.values[: 4 * shift] + own + frame.values[4 * shift :]
            frames.append(Steps(frame.step, DAY * 20_000 + frame.time + frame.step % 997, values))
        else:
            frames.append(frame)
    stream.schema, stream.frames = schema, frames
    return stream


def recorded(stream: Stream, folder: Path, **fields: Any) -> str:
    """Writes the stream as a journal below the folder; returns the id of the stream."""
    name = uuid.uuid4().hex
    writer = Journal(folder / RUN / name)
    for frame in stream.frames:
        if isinstance(frame, Hello):
            writer.hello(msgspec.structs.replace(frame, run=RUN, stream=name, **fields))
        else:
            writer.append(frame)
    writer.close()
    return name


def expected(frames: list[Frame], name: str) -> Rows:
    """The measured values of each step, from the frames of a stream without repeated names."""
    rows: Rows = {}
    columns: list[str] = []
    for frame in frames:
        if isinstance(frame, Hello):
            columns = names_of(frame.schema)
        elif isinstance(frame, Steps):
            values = zip(
                columns, struct.iter_unpack("<f", frame.values), struct.iter_unpack("4s", frame.values), strict=False
            )
            rows[name, frame.step] = {column: value for column, (value,), (bits,) in values if bits != ABSENT}
        elif isinstance(frame, Event) and frame.name == "values.logged":
            rows[name, frame.step] |= {column: float(np.float32(value)) for column, value in frame.data.items()}
    return rows


def names_of(schema: Schema) -> list[str]:
    return [*schema.scalars, *(f"{stat}/{tensor.name}" for stat in schema.stats for tensor in schema.tensors)]


def times_of(frames: list[Frame]) -> list[int]:
    return [frame.time for frame in frames if isinstance(frame, Steps)]


def assert_same(wanted: Rows, found: Rows) -> None:
    """Compares float32 values by their bits, but for the payload of NaN, which no target keeps."""
    assert wanted.keys() == found.keys()
    for row, values in wanted.items():
        assert values.keys() == found[row].keys(), row
        assert [bits(value) for value in values.values()] == [bits(found[row][name]) for name in values], row


def bits(value: float) -> str:
    """The float32 of a number as text; fails for a number that is no float32."""
    assert math.isnan(value) or value == np.float32(value)
    return "nan" if math.isnan(value) else float(value).hex()


def export(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    """Exports with --json; returns what the command says it wrote."""
    code = main(["export", *map(str, words), "--json"])
    printed = capsys.readouterr()
    assert 0 == code, printed.err
    return json.loads(printed.out)


def refusal(capsys: pytest.CaptureFixture[str], *words: object, code: int = 1) -> str:
    """Exports in vain; returns what the command says."""
    assert code == main(["export", *map(str, words)])
    printed = capsys.readouterr()
    assert "" == printed.out
    return " ".join(printed.err.split())


def narrow(*tensors: str) -> Stream:
    """An empty stream with these tensors."""
    return Stream([Tensor(name, (4,), "float32") for name in tensors])
