"""Closed fast steps until they become rows, about ten times per second."""

from __future__ import annotations

from time import perf_counter, time_ns
from typing import TYPE_CHECKING

from ammeter.recording.fast_path.steps import FastStep, PackedSteps
from ammeter.recording.row import Row

if TYPE_CHECKING:
    from ammeter.recording.fast_path import FastPath
    from ammeter.recording.session import Session

FLUSH_SECONDS = 0.1
FLUSH_STEPS = 96
"""Fast steps become rows when they span FLUSH_SECONDS, exceed FLUSH_STEPS, or the next followed step is due; then the
session decides whether the fast path continues."""

FULL_ROW_NS = 10**9
"""Interval in ns between rows that all probes finish."""


class Buffer:
    """The closed fast steps of a session. The last one waits for run.log."""

    def __init__(self, session: Session, fast_path: FastPath) -> None:
        self._session = session
        self._fast_path = fast_path
        self._completed_steps = session.completed_steps
        self._shared_steps = session.governor.shared_steps
        self._steps: list[FastStep] = []
        self._packed = PackedSteps(FLUSH_STEPS + 1)
        self._optimizers = frozenset[int]()
        self._count_fast_steps = session.probes.methods("count_fast_steps")
        self._passed = (0.0, 0.0, 0)
        """Seconds, seconds spent in Ammeter, and number of the steps that became rows since the last decision."""
        self._flushed_at = 0.0
        self._most_steps = FLUSH_STEPS
        self._epoch_ns = self._full_row_due_ns = 0

    def clear(self) -> None:
        self._steps = []

    def begin(self, optimizers: frozenset[int], now: float) -> None:
        """Starts with the steps of these optimizers, at this time of perf_counter."""
        self._optimizers = optimizers
        self._select_size()
        self._begin_interval(now)

    def last(self) -> FastStep | None:
        return self._steps[-1] if self._steps else None

    def add(self, step: FastStep, now: float) -> None:
        """Adds a step that closes now, in seconds of perf_counter; writes the buffer if it is due."""
        step.time = self._epoch_ns + int(now * 1e9)
        self._steps.append(step)
        self._completed_steps.close_fast(self._session.row.step - 1, step)
        is_special = step.row is not None or step.scale_after != step.scale or self._reaches_reading()
        if now - self._flushed_at >= FLUSH_SECONDS or len(self._steps) > self._most_steps or is_special:
            self._flush(now)

    def _reaches_reading(self) -> bool:
        """Whether the next step has to be read."""
        step = self._session.row.step
        return step >= self._shared_steps.next or self._session.governor.must_read_norms(step)

    def drain(self) -> None:
        """Writes all steps; the row of the last one waits for run.log."""
        self._write(but=1)
        for step in self._steps:
            self._queue(step, self._session.row.step - 1)
        self._steps.clear()
        self._account()

    def _flush(self, now: float) -> None:
        """Writes all steps but the last, which waits for run.log."""
        self._begin_interval(now)
        self._write(but=1)
        self._account()
        self._session.governor.attention.steps -= 1  # select_callbacks() counts the closed step
        self._session.select_callbacks(is_urgent=False)
        self._select_size()

    def _select_size(self) -> None:
        attention = self._session.governor.attention
        self._most_steps = min(FLUSH_STEPS, attention.length - attention.steps)

    def _begin_interval(self, now: float) -> None:
        self._flushed_at = now
        self._epoch_ns = time_ns() - int(perf_counter() * 1e9)  # read together: now may be older

    def _account(self) -> None:
        """Adds the steps that became rows to the budget."""
        (seconds, overhead, steps), self._passed = self._passed, (0.0, 0.0, 0)
        if steps:
            self._session.governor.earn(seconds, overhead, fast_steps=steps)
            self._session.governor.attention.steps += steps

    def _write(self, but: int = 0) -> None:
        """Moves the steps to rows, except the last `but`."""
        steps, first = self._steps, self._session.row.step - len(self._steps)
        count = len(steps) - but
        for index in range(count):
            self._move(steps[index], first + index)
        del steps[:count]
        self._write_packed()

    def _move(self, step: FastStep, number: int) -> None:
        """Moves a step to the rows.

        One step per FULL_ROW_NS is finished by all probes like any row, which keeps occasional values current. Steps
        without special data are packed.
        """
        session, packed = self._session, self._packed
        seconds, overhead, count = self._passed
        self._passed = seconds + step.seconds, overhead + step.overhead, count + 1
        if step.row is None and step.scale_after == step.scale and step.time < self._full_row_due_ns:
            if not packed.count:
                packed.first = number
            losses = session.losses.columns(step.losses) if step.losses else _NO_LOSS
            packed.add(step, losses, *session.probes.resources.usual_counts(step))
        else:
            self._full_row_due_ns = step.time + FULL_ROW_NS
            self._write_packed()
            self._queue(step, number)

    def _write_packed(self) -> None:
        """Writes the packed steps, after all waiting rows."""
        session, packed = self._session, self._packed
        frames = session.rows.encode_ready()
        first, count = packed.first, packed.count
        if count:
            frames += packed.take(session.columns.announce(frames))
        session.journal.append(*frames)
        if count:
            for count_fast_steps in self._count_fast_steps:
                count_fast_steps(first, count)

    def _queue(self, step: FastStep, number: int) -> None:
        """Queues a step as a row that is complete except for values from run.log."""
        row = step.row or Row(number)
        row.stepped, row.time = self._optimizers, step.time
        row.scalars["step_seconds"], row.scalars["overhead_seconds"] = step.seconds, step.overhead
        row.scalars["calls_followed"] = False
        self._fast_path.apply(row, step)
        self._session.rows.add(row)


_NO_LOSS: dict[str, float] = {}
