"""Closed rows, which wait for device data and for run.log before they are written."""

from __future__ import annotations

import time
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from ammeter.recording.returned_losses import is_transforming
from ammeter.recording.row import Row
from ammeter.wire.frames import Event, Frame, Lost, Steps

if TYPE_CHECKING:
    from ammeter.recording.session import Session

MAX_LATE_ROWS = 64
"""Maximum number of rows that wait for device data; if the device lags further, the oldest row is dropped and
counted."""

DRAIN_SECONDS = 2.0
"""Maximum time that close() waits for device data; a hanging device must not block the end of the program."""

URGENT_EVENTS = frozenset(
    {
        *("step.skipped", "gradient.nonfinite", "usage.clip_before_unscale", "weights.nonfinite", "moments.nonfinite"),
        "checkpoint.saved",
    }
)
"""Events that are written when their step closes. Other rows wait for run.log and are written in batches."""

BATCH_SECONDS = 0.1
BATCH_ROWS = 32
"""Non-urgent rows are written at the start of a step when they span BATCH_SECONDS or reach BATCH_ROWS in number. In a
step of 27 ms, finishing and writing a row alone takes 0.30 ms, because the step has evicted the code from the caches;
of four rows, each takes 0.17 ms."""


class RowQueue:
    """The closed rows of one session, oldest first."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._closed: deque[Row] = deque()

    def begin_step(self) -> None:
        """Marks that the program works on a new step, which completes earlier rows."""
        if not self._session.working:
            self._session.working = True
            self.write_due()

    def close_step(self) -> None:
        """Closes the open row, which waits for run.log unless it is urgent."""
        session = self._session
        row = session.row
        session.working, session.row = False, Row(row.step + 1)
        row.stamp()
        session.probes.resources.close(row)
        self._closed.append(row)
        row.scalars["calls_followed"] = session.follows
        session.completed_steps.close(row)
        is_urgent = _is_urgent(row)
        session.select_callbacks(is_urgent=is_urgent)
        if is_urgent:
            self.flush()
        elif len(self._closed) > BATCH_ROWS:
            self.write_due()

    def add(self, row: Row) -> None:
        """Queues a row that is complete except for values from run.log."""
        self._closed.append(row)

    def loggable(self) -> Row | None:
        """Returns the row for run.log: the last closed step's, or the open step's.

        None if the last closed row was written at once and the program has not begun another step.
        """
        session = self._session
        if session.working or session.row.step == 0:
            return session.row
        return self._closed[-1] if self._closed else None

    def write_due(self) -> None:
        """Writes the rows that have waited long enough."""
        closed = self._closed
        if closed:
            began = closed[0].began  # read before any call, in which another thread may write the row
            if len(closed) >= BATCH_ROWS or perf_counter() - began >= BATCH_SECONDS:
                self.flush()

    def flush(self) -> None:
        """Writes all rows that are ready with one journal call."""
        self._session.journal.append(*self.encode_ready())

    def drain(self) -> None:
        """Writes all rows; waits at most DRAIN_SECONDS for device data."""
        self.flush()
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._closed:
            row = self._closed.popleft()
            frames: list[Frame] = []
            while not row.ready() and time.monotonic() < deadline:
                time.sleep(0.001)
            with np.errstate(all="ignore"):
                self._encode(row, frames)
            self._session.journal.append(*frames)

    def encode_ready(self) -> list[Frame]:
        """Encodes the rows that are ready. Non-finite values are data and cause no numpy warning.

        No row is finished inside torch.func.grad(), where the probes could read no tensor.
        """
        frames: list[Frame] = []
        if self._closed and not is_transforming():
            with np.errstate(all="ignore"):
                while (row := self._next()) is not None:
                    self._encode(row, frames)
        return frames

    def _next(self) -> Row | None:
        """Removes and returns the oldest row if it is ready or too many wait.

        None otherwise, or if another thread removed it first.
        """
        try:
            if len(self._closed) > MAX_LATE_ROWS or self._closed[0].ready():
                return self._closed.popleft()
        except IndexError:
            pass
        return None

    def _encode(self, row: Row, frames: list[Frame]) -> None:
        """Finishes a row and appends its frames; may add events to the open row."""
        session = self._session
        if not row.ready():
            frames.append(Lost("device-late", 1, len(row.events)))
            return
        faults = session.faults
        for name, finish in session.probes.finishers:
            if name not in faults:
                try:
                    finish(row)
                except Exception as error:  # noqa: BLE001 - as in guard
                    session.record_fault(name, error)
        session.columns.update_tensors(session.watched.tensors)
        layout = session.columns.announce(frames)
        frames.append(Steps(row.step, row.time, row.values(layout)))
        for event, data in row.events:
            frames.append(Event(event, row.step, row.time, data))


def _is_urgent(row: Row) -> bool:
    """Whether a row is written at once."""
    return bool(row.urgent or row.skipped or (row.events and any(event in URGENT_EVENTS for event, _ in row.events)))
