"""Decodes curves that the collector sends as arrays: a header in JSON, and the arrays after it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import Floats, Ints
from ammeter.wire.decodable import decodable


@dataclass(frozen=True)
class Curve:
    """One column over steps.

    Attributes:
        name: of the column, such as loss, or grad.norm:head.weight for a tensor.
        rank: None for the merged value of all ranks.
        complete: whether it has every measured value; otherwise points were selected, with all extremes.
        steps: of the run, unless the request had axis="life".
        times: in seconds since the epoch.
        values: may contain NaN and Inf.
        step_offset: the step of the run at the attempt's own step 0.
        replaced_from: the step of the run from which later attempts replace this one; None if none does.
    """

    name: str
    rank: int | None
    stream: str
    complete: bool
    steps: Ints
    times: npt.NDArray[np.float64]
    values: Floats
    step_offset: int = 0
    replaced_from: int | None = None


class _Item(msgspec.Struct):
    """points: number of values. steps, times, values: where each array begins, in bytes after the header."""

    name: str
    rank: int | None
    stream: str
    points: int
    complete: bool
    steps: int
    times: int
    values: int
    step_offset: int = 0
    replaced_from: int | None = None


@decodable
class _Header(msgspec.Struct):
    items: list[_Item]
    next_page_token: str | None = None


def decode(body: bytes) -> tuple[list[Curve], str | None]:
    """Returns the curves of one page, and the token of the next page or None.

    Raises:
        ValueError: the body is not complete, or not of this format.
    """
    size = int.from_bytes(body[:4], "little")
    header = msgspec.json.decode(body[4 : 4 + size], type=_Header)
    arrays = memoryview(body)[4 + size :]
    return [_curve(item, arrays) for item in header.items], header.next_page_token


def _curve(item: _Item, arrays: memoryview) -> Curve:
    return Curve(
        name=item.name,
        rank=item.rank,
        stream=item.stream,
        complete=item.complete,
        steps=np.frombuffer(arrays, "<i8", item.points, item.steps).astype(np.int64),
        times=np.frombuffer(arrays, "<f8", item.points, item.times).astype(np.float64),
        values=np.frombuffer(arrays, "<f4", item.points, item.values).astype(np.float32),
        step_offset=item.step_offset,
        replaced_from=item.replaced_from,
    )
