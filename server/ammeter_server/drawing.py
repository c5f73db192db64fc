"""Curves as an answer carries them: as JSON, or as arrays behind a header. Arrays that curves share are made once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy.typing as npt
from fastapi import Response

from ammeter_server.curves import Curve
from ammeter_server.digits import as_json

FLOAT32 = "application/vnd.ammeter.series"

LAYOUT = (
    "Four bytes with the length of the header, the header as JSON, then the arrays. Of each item the header has"
    " `points` and where, in bytes behind the header, its `steps` (int64), `times` (float64, seconds since the epoch)"
    " and `values` (float32) begin, multiples of eight. Everything is little-endian. Items may share steps and times."
)

Told = Sequence[tuple[int | None, str, dict[str, Curve]]]
"""(rank, stream, name -> curve)"""


def answer(told: Told, form: str) -> Response:
    """One item per curve."""
    if form == "float32":
        return Response(_as_arrays(told), media_type=FLOAT32)
    return Response(_as_json(told), media_type="application/json")


def _as_json(told: Told) -> bytes:
    made: dict[int, msgspec.Raw] = {}

    def once(array: npt.NDArray[Any], seconds: bool) -> msgspec.Raw:
        if id(array) not in made:
            made[id(array)] = _encoded((array / 1e9 if seconds else array).tolist())
        return made[id(array)]

    items = [
        {
            "name": name,
            "rank": rank,
            "stream": stream,
            "steps": once(curve.steps, False),
            "times": once(curve.times, True),
            "values": msgspec.Raw(as_json(curve.values)),
        }
        for rank, stream, curves in told
        for name, curve in curves.items()
    ]
    return msgspec.json.encode({"items": items, "next_page_token": None})


def _encoded(numbers: list[Any]) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(numbers))


def _as_arrays(told: Told) -> bytes:
    parts: list[bytes] = []
    made: dict[tuple[int, str], int] = {}
    size = 0

    def placed(array: npt.NDArray[Any], kind: str, scale: float = 1.0) -> int:
        nonlocal size
        if (id(array), kind) not in made:
            data = (array / scale if scale != 1.0 else array).astype(kind).tobytes()
            made[id(array), kind] = size
            parts.append(data + bytes(-len(data) % 8))
            size += len(parts[-1])
        return made[id(array), kind]

    items = [
        {
            "name": name,
            "rank": rank,
            "stream": stream,
            "points": len(curve.values),
            "steps": placed(curve.steps, "<i8"),
            "times": placed(curve.times, "<f8", 1e9),
            "values": placed(curve.values, "<f4"),
        }
        for rank, stream, curves in told
        for name, curve in curves.items()
    ]
    header = msgspec.json.encode({"items": items})
    header += b" " * (-(4 + len(header)) % 8)
    return b"".join([len(header).to_bytes(4, "little"), header, *parts])
