"""Makes the content of a request: rows become column blocks, holes become gaps; and the newest completed step."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ammeter import journal
from ammeter.journal import Entry
from ammeter.wire.columns import fits, pack, view
from ammeter.wire.frames import Event, Hello, Item, Lost, Schema, Steps

MAX_ROWS = 1_000
MAX_UNPACKED_BYTES = 8 * 2**20
"""Limits of one request. A block is judged, and later read, as a whole: even a curve of one column unpacks all of
it."""

RING_SECONDS = 0.25
"""Interval between two readings of a stream's ring of completed steps."""

NO_STEP = (-1, 0)


@dataclass
class Payload:
    """The content of one request.

    ranges: the logical offsets [begin, end) of each item.
    """

    items: list[Item] = field(default_factory=list)
    ranges: list[tuple[int, int]] = field(default_factory=list)
    gaps: list[Lost] = field(default_factory=list)


class NewestStep:
    """The newest step that the writer of a stream has completed, as the batches report it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known = self._sent = NO_STEP
        self._read_at = 0.0

    def is_unsent(self, now: float) -> bool:
        """Returns whether a step has completed since the last batch: if no row follows, the writer may hang."""
        if now - self._read_at >= RING_SECONDS:
            self._read_at = now
            self._known = journal.newest_step(self._folder)
        return self._known > self._sent

    def send(self) -> tuple[int, int]:
        """Returns (number, time) of the step for the batch that is sent now."""
        self._sent = journal.newest_step(self._folder)
        return self._sent


def build_payload(entries: Sequence[Entry], schema: Schema | None, refused: Collection[int] = ()) -> Payload:
    """Converts entries of a stream, in order, to items and gaps.

    Rows without a known schema, because their hello is missing or refused, become gaps.

    Args:
        schema: the schema that applies before the first entry.
        refused: offsets of frames that the collector refuses; they are declared as gaps.
    """
    payload = Payload()
    rows: list[Entry] = []
    for entry in entries:
        frame = entry.frame
        if entry.begin in refused:
            payload.gaps.append(_gap("rejected", entry))
            if isinstance(frame, Hello):
                _append_block(payload, rows, schema)
                schema = None
        elif isinstance(frame, Steps):
            if schema is None or not fits(frame, schema):
                payload.gaps.append(_gap("no-schema", entry))
                continue
            if rows and frame.step < _step(rows[-1]):
                _append_block(payload, rows, schema)
            rows.append(entry)
        elif isinstance(frame, Lost) and frame.begin < frame.end:
            payload.gaps.append(msgspec.structs.replace(frame, begin=entry.begin, end=entry.end))
        else:
            _append_block(payload, rows, schema)
            schema = frame.schema if isinstance(frame, Hello) else schema
            payload.items.append(frame)
            payload.ranges.append((entry.begin, entry.end))
    _append_block(payload, rows, schema)
    return payload


def count_fitting(entries: Sequence[Entry], schema: Schema | None, max_bytes: int) -> int:
    """Returns how many entries fit into one request.

    The number is at least one; more need to fit into max_bytes of journal.
    """
    rows = unpacked = 0
    for count, entry in enumerate(entries):
        if isinstance(entry.frame, Hello):
            schema = entry.frame.schema
        elif isinstance(entry.frame, Steps):
            rows += 1
            unpacked += 16 + 4 * (schema.width if schema else 0)
        journal_bytes = entry.end - entries[0].begin
        exceeds = rows > MAX_ROWS or unpacked > MAX_UNPACKED_BYTES or journal_bytes > max_bytes
        if count and exceeds:
            return count
    return len(entries)


def _append_block(payload: Payload, rows: list[Entry], schema: Schema | None) -> None:
    """Converts the rows gathered so far to a block."""
    if rows and schema:
        payload.items.append(pack(view(schema, [row.frame for row in rows if isinstance(row.frame, Steps)])))
        payload.ranges.append((rows[0].begin, rows[-1].end))
    rows.clear()


def _gap(reason: str, entry: Entry) -> Lost:
    steps, events = isinstance(entry.frame, Steps), isinstance(entry.frame, Event)
    return Lost(reason, int(steps), int(events), entry.begin, entry.end)


def _step(entry: Entry) -> int:
    return entry.frame.step if isinstance(entry.frame, Steps) else 0
