"""Isolates single frames that the collector rejects, so that all others are delivered."""

from __future__ import annotations

from ammeter.journal import Entry
from ammeter.shipper.answers import Answer, backoff_seconds
from ammeter.shipper.http import LogState
from ammeter.shipper.packing import Payload
from ammeter.wire.frames import Lost

REJECTIONS_WITHOUT_WAIT = 32
"""Consecutive rejected frames before a wait, so that a collector that rejects everything is not flooded."""


class Rejections:
    """The rejected frames of one stream, and the range that contains the next one.

    offsets: offsets of the rejected frames. suspect: the range [begin, end) that contains a rejected frame, or None.
    consecutive: rejected frames since the last accepted batch.
    """

    def __init__(self, stream: str, log_state: LogState) -> None:
        self.offsets: set[int] = set()
        self.suspect: tuple[int, int] | None = None
        self.consecutive = 0
        self._stream = stream
        self._log_state = log_state

    def select(self, entries: list[Entry]) -> list[Entry]:
        """Returns the entries to send; while a frame is suspected, few enough to isolate it."""
        if self.suspect is None:
            return entries
        begin, end = self.suspect
        before = [entry for entry in entries if entry.end <= begin]
        within = [entry for entry in entries if begin < entry.end <= end]
        return before or within[: max(1, len(within) // 2)] or entries

    def narrow(self, answer: Answer, entries: list[Entry], payload: Payload, offset: int) -> bool:
        """Narrows down the rejected frame after a 400 or 422.

        Args:
            entries: the entries that were sent, from `offset` on, as `payload`.

        Returns:
            False if nothing that was sent can be the rejected frame.
        """
        if answer.item is not None and 0 <= answer.item < len(payload.ranges):
            begin, end = payload.ranges[answer.item]
        else:
            begin, end = offset, entries[-1].end if entries else 0
        suspects = [entry for entry in entries if begin < entry.end <= end and self._may_be_rejected(entry)]
        if not suspects:
            return False
        if len(suspects) > 1:
            self.suspect = (begin, end)
        else:
            self.reject(suspects[0], answer.detail)
        return True

    def reject(self, entry: Entry, detail: str) -> None:
        """Records a frame as rejected; it is reported to the collector as a gap."""
        self.offsets.add(entry.begin)
        self.consecutive += 1
        self.suspect = None
        kind = type(entry.frame).__name__.lower()
        frame = f"the {kind} frame at offset {entry.begin}"
        line = f"stream {self._stream}: the collector rejects {frame} ({detail}); the frame is counted as lost"
        self._log_state(f"rejected {self._stream}", kind + detail, line)

    def wait_seconds(self) -> float:
        """Returns the wait before the next request; 0 unless many frames were rejected in a row."""
        excess = self.consecutive - REJECTIONS_WITHOUT_WAIT
        return backoff_seconds(excess + 1) if excess >= 0 else 0.0

    def forget_before(self, offset: int) -> None:
        """Drops what is known of frames before an offset, which the collector has."""
        self.offsets = {begin for begin in self.offsets if begin >= offset}
        if self.suspect and self.suspect[1] <= offset:
            self.suspect = None

    def _may_be_rejected(self, entry: Entry) -> bool:
        is_gap = isinstance(entry.frame, Lost) and entry.frame.begin < entry.frame.end
        return entry.begin not in self.offsets and not is_gap
