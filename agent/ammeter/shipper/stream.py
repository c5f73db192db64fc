"""Delivers one stream: reads frames, decides when to send, and handles answers."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

import msgspec

from ammeter import journal
from ammeter.journal import UNKNOWN, Entry
from ammeter.shipper.disk_cap import Keeper
from ammeter.shipper.http import Answer, Collector, Say, backoff, slow
from ammeter.shipper.packing import Payload, fitting, parcel
from ammeter.shipper.process_death import Deaths
from ammeter.wire.frames import Batch, Bye, Event, Hello, Lost, Schema

READ_BYTES = 4 * 2**20
"""Most journal bytes of one stream that are in memory, and that are sent at once: a quarter of what a collector
accepts."""

FLUSH_SECONDS = 1.0
FLUSH_ROWS = 256
"""Rows wait this long for further rows, so that a block compresses; a run with more rows per second waits less."""

EVENT_SECONDS = 0.25
"""Events are sent at once, but a run that emits events continuously sends four times a second, not more."""

HEARTBEAT_SECONDS = 2.0
"""Interval of heartbeats of a stream with nothing to send; the verdict run-lost relies on it."""

TIDY_SECONDS = 1.0
"""Interval between two checks of a stream's segments; each check lists a folder."""

WITNESS_SECONDS = 2.0
"""How long a dead writer's stream is left to the witness (`ammeter run`), which knows what killed the writer."""

PARCELS_PER_TURN = 8
"""Requests per poll(), so that a stream with a long backlog does not delay the others."""

PATIENT_REFUSALS = 32
"""Consecutive refused frames before a wait, so that a collector that refuses everything is not flooded."""

PATIENT_JUMPS = 4
"""Consecutive times that the collector may redirect to another offset before a wait."""


REMEDY = "check that AMMETER_URL leads to one collector, and update it"


class Delivery:
    """Delivers one stream to the collector.

    poll() does what is due and returns. Only one thread at a time may call it.

    offset: what the collector has acknowledged. done: the stream has ended and is delivered. failures: consecutive
    unsuccessful tries. up_to_date: everything that existed at the last poll() is delivered.
    """

    def __init__(
        self,
        folder: Path,
        collector: Collector,
        say: Say,
        *,
        flush: bool = False,
        cap_bytes: int = journal.CAP_BYTES,
        deaths: Deaths | None = None,
    ) -> None:
        self.folder = folder
        self.offset = journal.acknowledged(folder)
        self.alive = True
        self.done = False
        self.up_to_date = False
        self.failures = 0
        first = journal.schema_before(folder, 0)
        self._run, self._stream = (first.run, first.stream) if first else (folder.parent.name, folder.name)
        self._collector = collector
        self._say = say
        self._flush = flush
        self._deaths = deaths
        self._keeper = Keeper(folder, cap_bytes)
        self._phase = zlib.crc32(folder.name.encode()) / 2**32 * FLUSH_SECONDS
        self._pending: list[Entry] = []
        self._pending_since = 0.0
        self._schema = self._schema_at(self.offset)
        self._sent = self._noted = max(self.offset, journal.offered(folder))
        self._refusal_noted: str | None = None
        self._sent_at = 0.0
        self._tidy_at = 0.0
        self._settle_at = 0.0
        self._dead_since: float | None = None
        self._not_before = 0.0
        self._recoveries: int | None = None
        self._most_bytes = READ_BYTES
        self._refused: set[int] = set()
        self._suspect: tuple[int, int] | None = None
        self._refusals = 0
        self._jumps = 0

    def poll(self) -> bool:
        """Does what is due now. Returns whether more is due already.

        Raises:
            OSError: the stream's folder cannot be read or written.
        """
        now = time.monotonic()
        self.alive = journal.is_alive(self.folder)
        self._keep_house(now)
        if self._waits(now):
            return False
        for _ in range(PARCELS_PER_TURN):
            self._read(now)
            if not self._due(time.monotonic()):
                break
            self._send()
            if self._waits(time.monotonic()):
                return False
        self.up_to_date = not self._pending
        if self.up_to_date and not self.alive:
            self._finish()
        return self._due(time.monotonic())

    def _keep_house(self, now: float) -> None:
        """Ends the stream of a dead writer at once, and tidies the folder at intervals."""
        try:
            if self.alive and self._deaths is not None:
                self._deaths.look(self.folder)
            if not self.alive and now >= self._settle_at and not self._left_to_witness(now):
                self._settle_at = now + TIDY_SECONDS
                journal.settle(
                    self.folder, time.time_ns(), self._deaths.ending(self.folder) if self._deaths else UNKNOWN
                )
                self._keeper.finish()
            if now >= self._tidy_at:
                self._tidy_at = now + TIDY_SECONDS
                self._keeper.tidy(self.offset, max(self._sent, self._read_to))
        except OSError as error:
            self._say(f"disk {self._stream}", str(error), f"stream {self._stream} cannot be tidied: {error}")

    def _left_to_witness(self, now: float) -> bool:
        """Returns whether to wait for a witness or SIGTERM that explains the writer's death."""
        if self._dead_since is None:
            self._dead_since = now
        waited = now - self._dead_since >= WITNESS_SECONDS
        awaited = self._deaths is not None and self._deaths.awaits(self._dead_since)
        return not waited and (awaited or journal.has_witness(self.folder.parent)) and not journal.ended(self.folder)

    @property
    def _read_to(self) -> int:
        return self._pending[-1].end if self._pending else self.offset

    def _waits(self, now: float) -> bool:
        back = self._recoveries is not None and self._recoveries != self._collector.recoveries
        return now < self._not_before and not back

    def _read(self, now: float) -> None:
        room = READ_BYTES - (self._read_to - self.offset)
        if room <= 0:
            return
        if not self._pending:
            self._pending_since = now
        self._pending.extend(journal.read(self.folder, self._read_to, room))

    def _due(self, now: float) -> bool:
        """Returns whether pending entries, or a heartbeat, have to be sent now."""
        if self.done:
            return False
        if not self._pending:
            return self.alive and self.offset > 0 and now - self._sent_at >= HEARTBEAT_SECONDS
        frames = [entry.frame for entry in self._pending]
        if self._flush or self.failures or self._suspect or self.offset == 0 or isinstance(frames[-1], Bye):
            return True
        if any(isinstance(frame, Event) for frame in frames) and now - self._sent_at >= EVENT_SECONDS:
            return True
        if len(frames) >= FLUSH_ROWS or self._read_to - self.offset >= READ_BYTES // 4:
            return True
        return self._beat(now) > self._beat(self._pending_since)

    def _beat(self, now: float) -> int:
        """Returns the second on this stream's own clock.

        The clocks differ in phase, so that the ranks of a run send at different moments.
        """
        return int((now - self._phase) / FLUSH_SECONDS)

    def _send(self) -> None:
        entries = self._chosen()
        packed = parcel(entries, self._schema, self._refused)
        end = entries[-1].end if entries else self.offset
        backlog = max(0, journal.written(self.folder) - end)
        batch = Batch(packed.items, packed.gaps, self.alive, backlog)
        self._note_offer(end)
        answer = self._collector.send(self._run, self._stream, self.offset, end, batch)
        self._sent_at = time.monotonic()
        self._take(answer, end, entries, packed)

    def _note_offer(self, end: int) -> None:
        """Records the offset before the request is sent.

        The next shipper must know what the collector may have, even if this one is killed.
        """
        self._sent = max(self._sent, end)
        if self._sent > self._noted:
            try:
                journal.offer(self.folder, self._sent)
                self._noted = self._sent
            except OSError as error:  # a full disk does not keep a stream from its collector
                self._say(f"note {self._stream}", str(error), f"stream {self._stream}: no note can be kept: {error}")

    def _chosen(self) -> list[Entry]:
        """Returns the next entries to send; with a suspected frame, few enough to isolate it."""
        entries = self._pending[: fitting(self._pending, self._schema, self._most_bytes)]
        if self._suspect is None:
            return entries
        begin, end = self._suspect
        before = [entry for entry in entries if entry.end <= begin]
        within = [entry for entry in entries if begin < entry.end <= end]
        return before or within[: max(1, len(within) // 2)] or entries

    def _take(self, answer: Answer, end: int, entries: list[Entry], packed: Payload) -> None:
        """Handles an answer. end: the offset at which the sent content ends."""
        moved = answer.offset is not None and answer.offset != self.offset
        wrong = self._wrong_offset(answer, end)
        if wrong:
            self._wait(answer, slow(self.failures + 1), wakes=False)
            self._tell_refusal("broken", f"stream {self._stream} is not delivered: {wrong}; data is kept, {REMEDY}")
        elif answer.status == 200 and answer.offset is not None:
            self._go_on(answer.offset)
            self._accepted(answer, packed)
        elif answer.status == 409 and answer.offset is not None and moved:
            self._jump(answer, answer.offset)
        elif answer.status == 410:
            self._give_up(answer)
        elif answer.status in (400, 422) and self._bisect_rejected(answer, entries, packed):
            self._slow_down_refusals()
        elif answer.status == 413 and entries:
            self._split(entries)
        elif answer.unavailable:
            self._wait(answer, backoff(self.failures + 1), wakes=answer.wait is None)
        else:
            self._wait(answer, slow(self.failures + 1), wakes=False)
            self._tell_refusal(f"refused {answer.status}", self._refusal(answer))

    def _give_up(self, answer: Answer) -> None:
        """Stops sending: the run was deleted at the collector. The local journal is not deleted."""
        self.done, self._pending = True, []
        self._tell_refusal(
            "deleted",
            f"stream {self._stream} is not sent any more: {answer.detail or answer.status}; its journal stays in"
            f" {self.folder} until somebody deletes it",
        )

    def _jump(self, answer: Answer, offset: int) -> None:
        """Continues at the collector's offset.

        A collector that names a different offset each time gets fewer and fewer requests.
        """
        self._jumps += 1
        self._go_on(offset)
        line = f"stream {self._stream} goes on at {self.offset}: the collector is there"
        self._say(f"offset {self._stream}", str(self.offset), line)
        if self._jumps > PATIENT_JUMPS:
            self._wait(answer, slow(self.failures + 1), wakes=False)
            self._tell_refusal(f"refused {answer.status}", self._refusal(answer))

    def _wrong_offset(self, answer: Answer, end: int) -> str:
        """Describes an impossible offset in an answer; '' if the offset is possible.

        A collector has what it was sent, and no more. A 200 acknowledges everything up to `end`. A 409 may be further
        back, for example after an older database was restored.
        """
        offset = answer.offset
        if answer.status == 200 and offset is not None and offset < end:
            return f"the collector accepts what ends at {end}, and acknowledges {offset}"
        if answer.status in (200, 409) and offset is not None and not 0 <= offset <= self._sent:
            return f"the collector says that it has {_number(offset)}, and nothing behind {self._sent} was ever sent"
        return ""

    def _tell_refusal(self, state: str, line: str) -> None:
        """Reports a refusal in the log and to readers of the journal."""
        self._say(self._stream, state, line)
        self._note_refusal(line)

    def _note_refusal(self, line: str) -> None:
        if line == self._refusal_noted:
            return
        try:
            journal.note_refusal(self.folder, line)
            self._refusal_noted = line
        except OSError as error:  # the line is in the log already
            self._say(f"note {self._stream}", str(error), f"stream {self._stream}: no note can be kept: {error}")

    def _go_on(self, offset: int) -> None:
        """Continues at `offset`: the collector has everything before it."""
        for entry in self._pending:
            if entry.end <= offset and isinstance(entry.frame, Hello):
                self._schema = None if entry.begin in self._refused else entry.frame.schema
        left = [entry for entry in self._pending if entry.begin >= offset]
        if offset < self.offset or offset > self._read_to or (left and left[0].begin != offset):
            left, self._schema = [], self._schema_at(offset)
        self._pending, self._pending_since = left, time.monotonic()
        self._refused = {begin for begin in self._refused if begin >= offset}
        if self._suspect and self._suspect[1] <= offset:
            self._suspect = None
        if offset != self.offset:
            journal.acknowledge(self.folder, offset)
        self.offset = offset

    def _accepted(self, answer: Answer, packed: Payload) -> None:
        self.failures = self._jumps = 0
        self._not_before, self._recoveries = 0.0, None
        self._most_bytes = min(READ_BYTES, self._most_bytes + self._most_bytes // 8 + 1)
        if packed.items:
            self._refusals = 0
        self._collector.accepts()
        self._note_refusal("")
        if answer.directives:
            journal.replace(self.folder / "directives", msgspec.json.encode(answer.directives))
        self._say(self._stream, "sends", f"stream {self._stream} is delivered up to {self.offset}")

    def _bisect_rejected(self, answer: Answer, entries: list[Entry], packed: Payload) -> bool:
        """Narrows down the refused frame. Returns False if nothing that was sent can be it."""
        named = answer.item is not None and 0 <= answer.item < len(packed.ranges)
        begin, end = packed.ranges[answer.item or 0] if named else (self.offset, entries[-1].end if entries else 0)
        suspects = [
            entry
            for entry in entries
            if begin < entry.end <= end and entry.begin not in self._refused and not _is_gap(entry)
        ]
        if not suspects:
            return False
        if len(suspects) > 1:
            self._suspect = (begin, end)
            return True
        self._refuse(suspects[0], answer.detail)
        return True

    def _refuse(self, entry: Entry, detail: str) -> None:
        self._refused.add(entry.begin)
        self._refusals += 1
        self._suspect = None
        what = type(entry.frame).__name__.lower()
        line = f"stream {self._stream}: the collector refuses a {what} frame at {entry.begin} ({detail}); declared lost"
        self._say(f"rejected {self._stream}", what + detail, line)

    def _slow_down_refusals(self) -> None:
        if self._refusals >= PATIENT_REFUSALS:
            self._not_before = time.monotonic() + backoff(self._refusals - PATIENT_REFUSALS + 1)

    def _split(self, entries: list[Entry]) -> None:
        """Halves the size of a request, or rejects a single frame that is too large."""
        if len(entries) == 1:
            self._refuse(entries[0], "413, too large")
        else:
            self._most_bytes = max(1, (entries[-1].end - self.offset) // 2)

    def _wait(self, answer: Answer, seconds: float, *, wakes: bool) -> None:
        """Delays the next request by `seconds`, or by Retry-After if that is longer.

        wakes: whether the request is made at once when the collector is reachable again.
        """
        self.failures += 1
        self._not_before = time.monotonic() + max(seconds, answer.wait or 0.0)
        self._recoveries = self._collector.recoveries if wakes else None
        self._pending, self.up_to_date = [], False

    def _refusal(self, answer: Answer) -> str:
        remedy = "check AMMETER_TOKEN" if answer.status in (401, 403) else "check AMMETER_URL and AMMETER_TOKEN"
        remedy = REMEDY if answer.status == 409 else remedy
        return f"stream {self._stream} is not accepted: {answer.detail or answer.status}; data is kept, {remedy}"

    def _schema_at(self, offset: int) -> Schema | None:
        hello = journal.schema_before(self.folder, offset) if offset else None
        return hello.schema if hello else None

    def _finish(self) -> None:
        if journal.segments(self.folder) and not journal.ended(self.folder):
            return
        self._keeper.finish()
        self.done = True
        self._say(self._stream, "done", f"stream {self._stream} is delivered to its end at {self.offset}")


def _number(offset: int) -> str:
    """Formats an offset from the collector, which may have a million digits."""
    return str(offset) if abs(offset) < 10**30 else "a number of more than 30 digits"


def _is_gap(entry: Entry) -> bool:
    return isinstance(entry.frame, Lost) and entry.frame.begin < entry.frame.end
