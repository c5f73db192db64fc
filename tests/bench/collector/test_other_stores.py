"""Remote write and a row per sample, checked byte by byte and row by row."""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Any

from bench.collector import other_stores
from bench.collector.synthetic_run import FULL_SCHEMA, new_run


def test_remote_write_sends_each_value_with_its_time_and_labels() -> None:
    (rank,) = new_run(1, 3, 1_790_000_000 * 10**9)
    found = [series(field) for number, field in fields(next(other_stores._requests(rank, 2, 3))) if number == 1]
    assert 1214 == len(found)
    place = FULL_SCHEMA.scalars.index("loss")
    labels, samples = found[place]
    assert {"__name__": "loss", "rank": "0", "run": rank.run} == labels
    expected = zip(rank.view.values[place, :2].tolist(), (rank.view.times[:2] // 10**6).tolist(), strict=True)
    assert list(expected) == samples
    assert {"grad_norm", "embed.weight"} <= {label for labels, _ in found for label in labels.values()}


def series(message: bytes) -> tuple[dict[str, str], list[tuple[float, int]]]:
    """Labels and samples of a TimeSeries."""
    parts = list(fields(message))
    pairs = [[text.decode() for _, text in fields(part)] for number, part in parts if number == 1]
    samples = [dict(fields(part)) for number, part in parts if number == 2]
    return dict(pairs), [(struct.unpack("<d", sample[1])[0], sample[2]) for sample in samples]


def fields(message: bytes) -> Any:
    """(number, content) of each field of a protobuf message: varints, doubles as bytes, and what has a length."""
    at = 0
    while at < len(message):
        number, kind = message[at] >> 3, message[at] & 7
        if kind == 1:
            content, at = message[at + 1 : at + 9], at + 9
            yield number, content
            continue
        value, at = varint(message, at + 1)
        if kind == 0:
            yield number, value
        else:
            yield number, message[at : at + value]
            at += value


def varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = message[at], at + 1
        value, shift = value | (byte & 0x7F) << shift, shift + 7
        if byte < 0x80:
            return value, at


def test_a_row_per_sample_stores_as_many_rows_as_values(tmp_path: Path) -> None:
    (rank,) = new_run(1, 4, time.time_ns())
    cost = other_stores.row_per_sample(tmp_path, rank, 2, 4)
    assert (4 * 1214, 2) == (cost.values, cost.requests)
    assert cost.stored > cost.values
