"""The append-only journal of a stream: folder layout, writer, reader and final record.

    <dir>/<run>/<stream>/alive                    the writer's lock: locked while its process lives
                        /<offset>.seg             frames; the name is the logical offset of the first one
                        /hot                      path of the open segment's folder, if it is on tmpfs
                        /ack                      the offset that the collector has acknowledged, as text
                        /offered                  the offset up to which the stream was sent, as text
                        /refused                  why the collector refuses this stream, if it does
                        /terminated               not empty: SIGTERM ended the writer (`ammeter run` only)

Only the writer creates segments; only the shipper or the mirror moves, thins or deletes closed ones. Logical offsets
never change: removed frames leave a hole, which the header of the next frame makes visible.
"""

from ammeter.journal.layout import (
    HOME,
    REFUSED,
    acknowledge,
    acknowledged,
    home_of,
    hot_folder,
    note_refusal,
    offer,
    offered,
    private_folder,
    refusal,
    replace,
    segment_path,
    segments,
    streams,
)
from ammeter.journal.process_lock import holder, is_alive, is_locked, lock, unlock
from ammeter.journal.reader import Entry, end_of, ended, read, schema_before, written
from ammeter.journal.segment_gc import TERMINATED, UNKNOWN, Ending, drop, mirror, move, settle, thin
from ammeter.journal.supervised import has_witness, witness_path
from ammeter.journal.writer import CAP_BYTES, SEGMENT_BYTES, Journal

__all__ = [
    "CAP_BYTES",
    "HOME",
    "REFUSED",
    "SEGMENT_BYTES",
    "TERMINATED",
    "UNKNOWN",
    "Ending",
    "Entry",
    "Journal",
    "acknowledge",
    "acknowledged",
    "drop",
    "end_of",
    "ended",
    "has_witness",
    "holder",
    "home_of",
    "hot_folder",
    "is_alive",
    "is_locked",
    "lock",
    "mirror",
    "move",
    "note_refusal",
    "offer",
    "offered",
    "private_folder",
    "read",
    "refusal",
    "replace",
    "schema_before",
    "segment_path",
    "segments",
    "settle",
    "streams",
    "thin",
    "unlock",
    "witness_path",
    "written",
]
