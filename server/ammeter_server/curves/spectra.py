"""Reads the spectra of a stream: histograms of the exponents of all gradient elements, or of those of one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ammeter.whatif import readings as of_tensors
from ammeter.whatif.cells import PER_EXPONENT
from ammeter.whatif.histogram import Histogram, histogram_of
from ammeter.wire.columns import Ints
from ammeter_server.db import Store
from ammeter_server.db.queries import events as query

EVENT = "gradient.spectrum"

EVENTS_PER_READ = 1000
"""Number of events that one transaction reads."""

EVENTS_OF_TENSORS_PER_READ = 100
"""The same for the exponents of tensors: of a large model, each event has some 20 KB."""

MAX_BINS = 4096


class Reading(NamedTuple):
    """One histogram as recorded in an event.

    Attributes:
        counts: Elements by exponent from `lowest` on, then zeros, then NaN and Inf.
    """

    step: int
    time: int
    lowest: int
    scale: float | None
    counts: Ints


def readings(store: Store, run: str, stream: str, span: query.Span) -> Iterator[Reading]:
    """Yields the stream's readings in order.

    Invalid histograms are skipped, and so are those whose bins differ from the first.
    """
    number, bins = -1, None
    while True:
        with store.reading() as connection:
            rows = query.named(connection, run, stream, EVENT, number, span, EVENTS_PER_READ)
        for row in rows:
            reading = _read(row.step, row.time, row.data)
            if reading and (bins := bins or (reading.lowest, len(reading.counts))) == (
                reading.lowest,
                len(reading.counts),
            ):
                yield reading
        if len(rows) < EVENTS_PER_READ:
            return
        number = rows[-1].number


def readings_of_tensor(store: Store, run: str, stream: str, span: query.Span, tensor: str) -> list[Reading]:
    """Returns the readings of one tensor's gradient in order, all with the same bins."""
    found: list[tuple[int, Histogram]] = []
    number = -1
    while True:
        with store.reading() as connection:
            rows = query.named(connection, run, stream, of_tensors.EVENT, number, span, EVENTS_OF_TENSORS_PER_READ)
        for row in rows:
            entries = row.data.get("tensors") if row.data.get("of") == of_tensors.GRADIENT else None
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, dict) and entry.get("tensor") == tensor:
                    known = histogram_of(row.step, row.data.get("scale"), entry)
                    found += [(row.time, known[1])] if known else []
        if len(rows) < EVENTS_OF_TENSORS_PER_READ:
            break
        number = rows[-1].number
    filled = [histogram for _, histogram in found if histogram.counts]
    if not filled:
        return []
    lowest = min(histogram.lowest for histogram in filled)
    bins = max(histogram.lowest + len(histogram.counts) // PER_EXPONENT for histogram in filled) - lowest
    return [
        Reading(histogram.step, time, lowest, histogram.scale, _counts(histogram, lowest, bins))
        for time, histogram in found
    ]


def _counts(histogram: Histogram, lowest: int, bins: int) -> Ints:
    """The elements per exponent, without the cells that divide one."""
    counts = np.zeros(bins + 2, np.int64)
    of_exponents = np.array(histogram.counts, np.int64).reshape(-1, PER_EXPONENT).sum(axis=1)
    begin = histogram.lowest - lowest if len(of_exponents) else 0
    counts[begin : begin + len(of_exponents)] = of_exponents
    counts[-2:] = histogram.zeros, histogram.nonfinite
    return counts


def _read(step: int, time: int, data: dict[str, Any]) -> Reading | None:
    lowest, counts, scale = data.get("lowest"), data.get("counts"), data.get("scale")
    if not isinstance(lowest, int) or not isinstance(counts, list) or not 3 <= len(counts) <= MAX_BINS:
        return None
    if not all(isinstance(count, int) and 0 <= count < 2**53 for count in counts):
        return None
    return Reading(step, time, lowest, scale if isinstance(scale, int | float) else None, np.array(counts, np.int64))
