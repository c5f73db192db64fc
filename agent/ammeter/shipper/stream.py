"""Delivers one stream: reads frames, decides when to send, and handles answers."""

from __future__ import annotations

import time
import zlib
from pathlib import Path

from ammeter import journal
from ammeter.journal import Entry
from ammeter.journal.directives import DirectiveFile
from ammeter.shipper.answers import Answer, backoff_seconds, offset_error, rejected_wait_seconds, with_remedy
from ammeter.shipper.http import Collector, LogState
from ammeter.shipper.packing import NewestStep, Payload, build_payload, count_fitting
from ammeter.shipper.process_death import DeathCauses
from ammeter.shipper.rejections import Rejections
from ammeter.shipper.upkeep import Upkeep
from ammeter.wire.frames import PROTOCOL, Batch, Bye, Event, Hello, Schema

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

REQUESTS_PER_POLL = 8
"""Limit of requests per poll(), so that a stream with a long backlog does not delay the others."""

JUMPS_WITHOUT_WAIT = 4
"""Consecutive times that the collector may redirect to another offset before a wait."""


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
        log_state: LogState,
        *,
        flush: bool = False,
        cap_bytes: int = journal.CAP_BYTES,
        deaths: DeathCauses | None = None,
    ) -> None:
        self.folder = folder
        self.offset = journal.acknowledged(folder)
        self.alive = True
        self.done = False
        self.up_to_date = False
        self.failures = 0
        hello = journal.schema_before(folder, 0)
        self._run, self._stream = (hello.run, hello.stream) if hello else (folder.parent.name, folder.name)
        self._collector = collector
        self._log_state = log_state
        self._flush = flush
        self._upkeep = Upkeep(folder, self._stream, log_state, cap_bytes=cap_bytes, deaths=deaths)
        self._rejections = Rejections(self._stream, log_state)
        self._phase_seconds = zlib.crc32(folder.name.encode()) / 2**32 * FLUSH_SECONDS
        self._pending: list[Entry] = []
        self._pending_since = 0.0
        self._schema = self._schema_at(self.offset)
        self._sent_end = self._recorded_end = max(self.offset, journal.offered(folder))
        self._recorded_refusal: str | None = None
        self._sent_at = 0.0
        self._newest_step = NewestStep(folder)
        self._paused_until = 0.0
        self._paused_at_recovery: int | None = None
        self._max_bytes = READ_BYTES
        self._jumps = 0
        self._directives = DirectiveFile(folder)

    def poll(self) -> bool:
        """Does what is due now. Returns whether more is due already.

        Raises:
            OSError: the stream's folder cannot be read or written.
        """
        now = time.monotonic()
        self.alive = journal.is_alive(self.folder)
        touched = max(self._sent_end, self._read_end)
        self._upkeep.poll(now, alive=self.alive, delivered=self.offset, touched=touched)
        if self._is_paused(now):
            return False
        for _ in range(REQUESTS_PER_POLL):
            self._read(now)
            if not self._is_due(time.monotonic()):
                break
            self._send()
            if self._is_paused(time.monotonic()):
                return False
        self.up_to_date = not self._pending
        if self.up_to_date and not self.alive:
            self._finish()
        return self._is_due(time.monotonic())

    @property
    def _read_end(self) -> int:
        return self._pending[-1].end if self._pending else self.offset

    def _is_paused(self, now: float) -> bool:
        recovered = self._paused_at_recovery is not None and self._paused_at_recovery != self._collector.recoveries
        return now < self._paused_until and not recovered

    def _read(self, now: float) -> None:
        free_bytes = READ_BYTES - (self._read_end - self.offset)
        if free_bytes <= 0:
            return
        if not self._pending:
            self._pending_since = now
        self._pending.extend(journal.read(self.folder, self._read_end, free_bytes))

    def _is_due(self, now: float) -> bool:
        """Returns whether pending entries, or a heartbeat, have to be sent now."""
        if self.done:
            return False
        if not self._pending:
            seconds = HEARTBEAT_SECONDS if not self._newest_step.is_unsent(now) else FLUSH_SECONDS
            return self.alive and self.offset > 0 and now - self._sent_at >= seconds
        frames = [entry.frame for entry in self._pending]
        if self._flush or self.failures or self._rejections.suspect or self.offset == 0 or isinstance(frames[-1], Bye):
            return True
        if any(isinstance(frame, Event) for frame in frames) and now - self._sent_at >= EVENT_SECONDS:
            return True
        if len(frames) >= FLUSH_ROWS or self._read_end - self.offset >= READ_BYTES // 4:
            return True
        return self._flush_tick(now) > self._flush_tick(self._pending_since)

    def _flush_tick(self, now: float) -> int:
        """Returns the second on this stream's own clock.

        The clocks differ in phase, so that the ranks of a run send at different moments.
        """
        return int((now - self._phase_seconds) / FLUSH_SECONDS)

    def _send(self) -> None:
        fitting = self._pending[: count_fitting(self._pending, self._schema, self._max_bytes)]
        entries = self._rejections.select(fitting)
        payload = build_payload(entries, self._schema, self._rejections.offsets)
        end = entries[-1].end if entries else self.offset
        backlog_bytes = max(0, journal.written_offset(self.folder) - end)
        batch = Batch(payload.items, payload.gaps, self.alive, backlog_bytes, PROTOCOL, *self._newest_step.send())
        self._record_sent(end)
        answer = self._collector.send(self._run, self._stream, self.offset, end, batch)
        self._sent_at = time.monotonic()
        self._handle(answer, end, entries, payload)

    def _record_sent(self, end: int) -> None:
        """Records the offset before the request is sent.

        The next shipper must know what the collector may have, even if this one is killed.
        """
        self._sent_end = max(self._sent_end, end)
        if self._sent_end > self._recorded_end:
            try:
                journal.offer(self.folder, self._sent_end)
                self._recorded_end = self._sent_end
            except OSError as error:  # a stream is delivered even if the disk is full
                self._log_unrecorded(error)

    def _handle(self, answer: Answer, end: int, entries: list[Entry], payload: Payload) -> None:
        """Handles an answer. end: the offset at which the sent content ends."""
        moved = answer.offset is not None and answer.offset != self.offset
        error = offset_error(answer, end, self._sent_end)
        if error:
            self._pause(answer, rejected_wait_seconds(self.failures + 1), until_recovery=False)
            self._report_refusal("broken", with_remedy(f"stream {self._stream} is not delivered: {error}", answer))
        elif answer.status == 200 and answer.offset is not None:
            self._continue_at(answer.offset)
            self._note_accepted(answer, payload)
        elif answer.status == 409 and answer.offset is not None and moved:
            self._jump(answer, answer.offset)
        elif answer.status == 410:
            self._give_up(answer)
        elif answer.status in (400, 422) and self._rejections.narrow(answer, entries, payload, self.offset):
            self._paused_until = time.monotonic() + self._rejections.wait_seconds()
        elif answer.status == 413 and entries:
            self._split(entries)
        elif answer.unavailable:
            seconds = backoff_seconds(self.failures + 1)
            self._pause(answer, seconds, until_recovery=answer.retry_seconds is None)
        else:
            self._pause(answer, rejected_wait_seconds(self.failures + 1), until_recovery=False)
            self._report_refusal(f"refused {answer.status}", self._refusal(answer))

    def _give_up(self, answer: Answer) -> None:
        """Stops sending: the run was deleted at the collector. The local journal is not deleted."""
        self.done, self._pending = True, []
        self._report_refusal(
            "deleted",
            f"stream {self._stream} is no longer sent: {answer.detail or answer.status}; its journal stays in"
            f" {self.folder} until you delete it",
        )

    def _jump(self, answer: Answer, offset: int) -> None:
        """Continues at the collector's offset.

        A collector that names a different offset each time gets fewer and fewer requests.
        """
        self._jumps += 1
        self._continue_at(offset)
        line = f"stream {self._stream} continues at {self.offset}, the collector's offset"
        self._log_state(f"offset {self._stream}", str(self.offset), line)
        if self._jumps > JUMPS_WITHOUT_WAIT:
            self._pause(answer, rejected_wait_seconds(self.failures + 1), until_recovery=False)
            self._report_refusal(f"refused {answer.status}", self._refusal(answer))

    def _report_refusal(self, state: str, line: str) -> None:
        """Reports a refusal in the log and to readers of the journal."""
        self._log_state(self._stream, state, line)
        self._record_refusal(line)

    def _record_refusal(self, line: str) -> None:
        if line == self._recorded_refusal:
            return
        try:
            journal.note_refusal(self.folder, line)
            self._recorded_refusal = line
        except OSError as error:  # the line is in the log already
            self._log_unrecorded(error)

    def _log_unrecorded(self, error: OSError) -> None:
        line = f"stream {self._stream}: the state of its delivery cannot be written to disk: {error}"
        self._log_state(f"note {self._stream}", str(error), line)

    def _continue_at(self, offset: int) -> None:
        """Continues at `offset`: the collector has everything before it."""
        for entry in self._pending:
            if entry.end <= offset and isinstance(entry.frame, Hello):
                self._schema = None if entry.begin in self._rejections.offsets else entry.frame.schema
        unsent = [entry for entry in self._pending if entry.begin >= offset]
        if offset < self.offset or offset > self._read_end or (unsent and unsent[0].begin != offset):
            unsent, self._schema = [], self._schema_at(offset)
        self._pending, self._pending_since = unsent, time.monotonic()
        self._rejections.forget_before(offset)
        if offset != self.offset:
            journal.acknowledge(self.folder, offset)
        self.offset = offset

    def _note_accepted(self, answer: Answer, payload: Payload) -> None:
        self.failures = self._jumps = 0
        self._paused_until, self._paused_at_recovery = 0.0, None
        self._max_bytes = min(READ_BYTES, self._max_bytes + self._max_bytes // 8 + 1)
        if payload.items:
            self._rejections.consecutive = 0
        self._collector.note_accepted()
        self._record_refusal("")
        if answer.directives:
            self._directives.leave(answer.directives)
        self._log_state(self._stream, "sends", f"stream {self._stream} is delivered up to {self.offset}")

    def _split(self, entries: list[Entry]) -> None:
        """Halves the size of a request, or rejects a single frame that is too large."""
        if len(entries) == 1:
            self._rejections.reject(entries[0], "413, too large")
        else:
            self._max_bytes = max(1, (entries[-1].end - self.offset) // 2)

    def _pause(self, answer: Answer, seconds: float, *, until_recovery: bool) -> None:
        """Delays the next request by `seconds`, or by Retry-After if that is longer.

        until_recovery: whether the request is made at once when the collector is reachable again.
        """
        self.failures += 1
        self._paused_until = time.monotonic() + max(seconds, answer.retry_seconds or 0.0)
        self._paused_at_recovery = self._collector.recoveries if until_recovery else None
        self._pending, self.up_to_date = [], False

    def _refusal(self, answer: Answer) -> str:
        return with_remedy(f"stream {self._stream} is not accepted: {answer.detail or answer.status}", answer)

    def _schema_at(self, offset: int) -> Schema | None:
        hello = journal.schema_before(self.folder, offset) if offset else None
        return hello.schema if hello else None

    def _finish(self) -> None:
        if journal.segments(self.folder) and not journal.ended(self.folder):
            return
        self._upkeep.finish()
        self.done = True
        self._log_state(self._stream, "done", f"stream {self._stream} is completely delivered, up to {self.offset}")
