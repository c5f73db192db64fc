"""From what a journal holds to what one request carries: runs of rows become column blocks, holes become gaps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import msgspec

from ammeter.journal import Entry
from ammeter.wire.columns import fits, pack, view
from ammeter.wire.frames import Event, Hello, Item, Lost, Schema, Steps

MAX_ROWS = 1_000
MAX_UNPACKED_BYTES = 8 * 2**20
"""What one request carries at most. A block is judged, and later read, as a whole: a curve of one column unpacks it."""


@dataclass
class Payload:
    """What one request carries. ranges: the logical offsets [begin, end) that each item stands for."""

    items: list[Item] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[Lost] = field(default_factory=list)


def parcel(entries: Sequence[Entry], schema: Schema | None, refused: Collection[int] = ()) -> Payload:
    """Entries of a stream, in order, as items and gaps.

    schema: in force before the first entry. refused: offsets of frames that the collector will not have; they are
    declared as gaps. Rows whose columns nobody can know, because their hello is missing or refused, are gaps too.
    """
    made = Payload()
    rows: list[Entry] = []
    for entry in entries:
        frame = entry.frame
        if entry.begin in refused:
            made.gaps.append(_gap("rejected", entry))
            if isinstance(frame, Hello):
                _close(made, rows, schema)
                schema = None
        elif isinstance(frame, Steps):
            if schema is None or not fits(frame, schema):
                made.gaps.append(_gap("no-schema", entry))
                continue
            if rows and frame.step < _step(rows[-1]):
                _close(made, rows, schema)
            rows.append(entry)
        elif isinstance(frame, Lost) and frame.begin < frame.end:
            made.gaps.append(msgspec.structs.replace(frame, begin=entry.begin, end=entry.end))
        else:
            _close(made, rows, schema)
            schema = frame.schema if isinstance(frame, Hello) else schema
            made.items.append(frame)
            made.ranges.append((entry.begin, entry.end))
    _close(made, rows, schema)
    return made


def fitting(entries: Sequence[Entry], schema: Schema | None, most_bytes: int) -> int:
    """How many of the entries one request carries: at least one, at most most_bytes of journal."""
    rows = unpacked = 0
    for count, entry in enumerate(entries):
        if isinstance(entry.frame, Hello):
            schema = entry.frame.schema
        elif isinstance(entry.frame, Steps):
            rows += 1
            unpacked += 16 + 4 * (schema.width if schema else 0)
        too_much = rows > MAX_ROWS or unpacked > MAX_UNPACKED_BYTES or _held(entry, entries[0]) > most_bytes
        if count and too_much:
            return count
    return len(entries)


def _close(made: Payload, rows: list[Entry], schema: Schema | None) -> None:
    """Makes a block of the rows gathered so far."""
    if rows and schema:
        made.items.append(pack(view(schema, [row.frame for row in rows if isinstance(row.frame, Steps)])))
        made.ranges.append((rows[0].begin, rows[-1].end))
    rows.clear()


def _gap(reason: str, entry: Entry) -> Lost:
    steps, events = isinstance(entry.frame, Steps), isinstance(entry.frame, Event)
    return Lost(reason, int(steps), int(events), entry.begin, entry.end)


def _step(entry: Entry) -> int:
    return entry.frame.step if isinstance(entry.frame, Steps) else 0


def _held(entry: Entry, first: Entry) -> int:
    return entry.end - first.begin
