"""Counts the readings of a stream that verdicts need, in one place and in a fixed amount of space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ammeter.wire.columns import View
from ammeter.wire.frames import IMPORTED, Event, Hello

COLUMNS = (
    "scale",
    "grad_norm",
    "grad_absmax",
    "grad_agreement",
    "update_ratio",
    "lost_updates",
    "weights_nonfinite",
    "device_reserved_bytes",
    "device_utilization",
)
"""Scalars whose measured values are counted."""

HISTORY_COLUMNS = ("loss", "val_loss", "skipped", "applied")
"""Scalars that are counted as well in a history of another tool, where any may be missing."""

HISTORY = "history"
"""Is 1 among the counts of such a stream."""

CENSUS = "kernels.census"
"""The event whose forward passes are counted."""

HALF_DTYPES = ("float16", "bfloat16")


def advance(before: Mapping[str, int], view: View) -> dict[str, int]:
    """Returns the counts after a view: readings by column, censuses, and half-precision tensors of the schema."""
    after = dict(before)
    if any(isinstance(frame, Hello) and IMPORTED in frame.environment for _, frame in view.frames):
        after[HISTORY] = 1
    places = view.schema.places
    counts = view.is_measured.sum(axis=1).tolist()
    for column in COLUMNS + (HISTORY_COLUMNS if HISTORY in after else ()):
        if column in places and counts[places[column]]:
            after[column] = after.get(column, 0) + counts[places[column]]
    for _, frame in view.frames:
        if isinstance(frame, Hello):
            dtypes = [tensor.dtype for tensor in frame.schema.tensors]
            after["half_tensors"] = sum(dtype in HALF_DTYPES for dtype in dtypes)
            after["float16_tensors"] = dtypes.count("float16")
        elif isinstance(frame, Event) and frame.name == CENSUS and frame.data.get("phase") == "forward":
            after[CENSUS] = after.get(CENSUS, 0) + 1
    return after


def of(counters: Mapping[str, Any]) -> dict[str, int] | None:
    """Returns the readings of a stream with its applied steps; None for a stream of an earlier version."""
    readings = counters.get("readings")
    return None if readings is None else {**readings, "applied": counters.get("applied", 0)}
