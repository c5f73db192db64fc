"""Encodes curves for a response, as JSON or as arrays after a header.

Data that curves share is encoded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy.typing as npt
from fastapi import Response
from starlette.types import Receive, Scope, Send

from ammeter.verdicts.framework.placement import Place
from ammeter_server.curves.curve import Curve
from ammeter_server.curves.float_json import between_brackets

FLOAT32 = "application/vnd.ammeter.series"

LAYOUT = (
    "Four bytes with the length of the header, the header as JSON, then the arrays. For each item the header has"
    " `points` and the beginnings of its `steps` (int64), `times` (float64, seconds since the epoch) and `values`"
    " (float32), in bytes after the header, multiples of eight. Little-endian. Items may share steps and times."
)

CHUNK_BYTES = 256 * 2**10

Part = bytes | memoryview


class Drawn(NamedTuple):
    """The curves of a stream. place: of the stream on the axis of its run."""

    rank: int | None
    stream: str
    curves: dict[str, Curve]
    place: Place = Place()

    def head(self) -> dict[str, Any]:
        """Returns the members of each item that do not depend on the curve."""
        where = {"step_offset": self.place.begin, "replaced_from": self.place.end}
        return {"rank": self.rank, "stream": self.stream, **where}


LabelledCurves = Sequence[Drawn | tuple[int | None, str, dict[str, Curve]]]


class ChunkedResponse(Response):
    """A response of several megabytes, joined chunk by chunk while it is sent.

    Joined as a whole it would be copied three times, into memory newly allocated by the system.
    """

    def __init__(self, parts: Sequence[Part], media_type: str) -> None:
        super().__init__(media_type=media_type)
        self.parts = parts
        self.headers["content-length"] = str(sum(map(len, parts)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for chunk in self._chunks():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    def _chunks(self) -> Iterator[bytes]:
        begin = size = 0
        for end, part in enumerate(self.parts, 1):
            size += len(part)
            if size >= CHUNK_BYTES or end == len(self.parts):
                yield b"".join(self.parts[begin:end])
                begin, size = end, 0


def answer(curves: LabelledCurves, form: str, following: str | None = None, times: bool = True) -> ChunkedResponse:
    """Encodes one item per curve. following: the token of the next page. times: whether JSON has the times."""
    if form == "float32":
        return ChunkedResponse(_as_arrays(curves, following), FLOAT32)
    return ChunkedResponse(_as_json(curves, following, times), "application/json")


def _as_json(curves: LabelledCurves, following: str | None, times: bool) -> list[Part]:
    return [*_items_and_axes(curves, times), b',"next_page_token":', msgspec.json.encode(following), b"}"]


def as_member(curves: LabelledCurves) -> msgspec.Raw:
    """Encodes the curves as a member of another JSON response."""
    return msgspec.Raw(b"".join([*_items_and_axes(curves), b"}"]))


def _drawn(curves: LabelledCurves) -> list[Drawn]:
    return [Drawn(*labelled) for labelled in curves]


def _items_and_axes(curves: LabelledCurves, times: bool = True) -> Iterator[Part]:
    """Yields the values of each curve, then `axes` with steps and times.

    An axis is written once for all curves that share it.
    """
    labelled = [(drawn.head(), name, curve) for drawn in _drawn(curves) for name, curve in drawn.curves.items()]
    axes: dict[int, int] = {}
    shown: list[dict[str, list[Any]]] = []
    before = b'{"items":['
    values = between_brackets([curve.values for *_, curve in labelled])
    for (head, name, curve), text in zip(labelled, values, strict=True):
        if axes.setdefault(id(curve.steps), len(axes)) == len(shown):
            shown.append({"steps": curve.steps.tolist(), "times": (curve.times / 1e9).tolist() if times else []})
        item = msgspec.json.encode({"name": name, **head, "axis": axes[id(curve.steps)], "complete": curve.complete})
        yield from (before, item[:-1], b',"values":[', text, b"]}")
        before = b","
    yield from (b"" if labelled else before, b'],"axes":', msgspec.json.encode(shown))


def _as_arrays(curves: LabelledCurves, following: str | None) -> list[Part]:
    parts: list[bytes] = []
    offsets: dict[tuple[int, str], int] = {}
    size = 0

    def placed(array: npt.NDArray[Any], kind: str, scale: float = 1.0) -> int:
        nonlocal size
        if (id(array), kind) not in offsets:
            data = (array / scale if scale != 1.0 else array).astype(kind).tobytes()
            offsets[id(array), kind] = size
            parts.append(data + bytes(-len(data) % 8))
            size += len(parts[-1])
        return offsets[id(array), kind]

    items = [
        {
            "name": name,
            **drawn.head(),
            "points": len(curve.values),
            "complete": curve.complete,
            "steps": placed(curve.steps, "<i8"),
            "times": placed(curve.times, "<f8", 1e9),
            "values": placed(curve.values, "<f4"),
        }
        for drawn in _drawn(curves)
        for name, curve in drawn.curves.items()
    ]
    header = msgspec.json.encode({"items": items, "next_page_token": following})
    header += b" " * (-(4 + len(header)) % 8)
    return [len(header).to_bytes(4, "little"), header, *parts]
