"""The append-only journal of a stream: folder layout, writer, reader and final record.

    <dir>/<run>/<stream>/alive                    the writer's lock: locked while its process lives
                        /<offset>.seg             frames; the name is the logical offset of the first one
                        /hot                      path of the open segment's folder, if it is on tmpfs
                        /ring                     the newest completed steps, beside the open segment on tmpfs
                        /ack                      the offset that the collector has acknowledged, as text
                        /offered                  the offset up to which the stream was sent, as text
                        /device                   share of time in which the device ran kernels, from the shipper
                        /refused                  why the collector refuses this stream, if it does
                        /terminated               not empty: SIGTERM ended the writer (`ammeter run` only)

Only the writer creates segments; only the shipper or the mirror moves, thins or deletes closed ones. Logical offsets
never change: removed frames leave a hole, which the header of the next frame makes visible.
"""

from ammeter.journal.dead_writer import TERMINATED_FILE, UNKNOWN_ENDING, Ending, end_stream, recover_steps
from ammeter.journal.device_use import DeviceUse, note_utilization
from ammeter.journal.exit_watcher_lock import exit_watcher_path, has_exit_watcher
from ammeter.journal.layout import (
    HOME_FILE,
    REFUSAL_FILE,
    acknowledge,
    acknowledged,
    hot_folder,
    note_refusal,
    offer,
    offered,
    private_folder,
    refusal,
    replace,
    segment_path,
    segments,
    stream_folder_of,
    streams,
)
from ammeter.journal.process_lock import is_alive, is_locked, lock, lock_owner, unlock
from ammeter.journal.reader import Entry, end_of, ended, read, schema_before, written_offset
from ammeter.journal.segment_gc import drop, mirror, move, thin
from ammeter.journal.size_cap import CAP_BYTES
from ammeter.journal.step_ring import CompletedStep, StepRing, newest_step, remove_ring, unwritten_steps
from ammeter.journal.writer import SEGMENT_BYTES, Journal

__all__ = [
    "CAP_BYTES",
    "HOME_FILE",
    "REFUSAL_FILE",
    "SEGMENT_BYTES",
    "TERMINATED_FILE",
    "UNKNOWN_ENDING",
    "CompletedStep",
    "DeviceUse",
    "Ending",
    "Entry",
    "Journal",
    "StepRing",
    "acknowledge",
    "acknowledged",
    "drop",
    "end_of",
    "end_stream",
    "ended",
    "exit_watcher_path",
    "has_exit_watcher",
    "hot_folder",
    "is_alive",
    "is_locked",
    "lock",
    "lock_owner",
    "mirror",
    "move",
    "newest_step",
    "note_refusal",
    "note_utilization",
    "offer",
    "offered",
    "private_folder",
    "read",
    "recover_steps",
    "refusal",
    "remove_ring",
    "replace",
    "schema_before",
    "segment_path",
    "segments",
    "stream_folder_of",
    "streams",
    "thin",
    "unlock",
    "unwritten_steps",
    "written_offset",
]
