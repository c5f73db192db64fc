"""Stores each step in the stream's ring when it completes, for the case that its row is never written."""

from __future__ import annotations

from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

from ammeter.journal.step_ring import ABSENT_NUMBER
from ammeter.recording.scaler_updates import Update, is_positive, skipped_in
from ammeter.torch_hooks import optimizer_steps

if TYPE_CHECKING:
    from ammeter.recording.fast_path import FastStep
    from ammeter.recording.row import Row
    from ammeter.recording.session import Session


class CompletedSteps:
    """The completed steps of one session.

    With a scaler a step completes at update(). Without one it completes when its optimizer returns, although it closes
    with the next call of the program, which a program that hangs never makes.
    """

    name = "completed_steps"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ring = session.journal.ring
        self._known_loss = session.losses.known
        self._stored = -1
        """The newest step in the ring."""
        self._per_backward = 0.0, 0.0
        """Usual samples and tokens of a backward pass on the fast path; 0 for unknown."""

    def attach(self) -> list[Any]:
        if self._session.journal.ring_error is not None:
            self._session.record_fault(self.name, self._session.journal.ring_error)
        if self._ring is None:
            return []
        return [optimizer_steps.after(self._session.light_guard(self.name, self._after_optimizer))]

    def detach(self) -> None:
        """Ends all stores, such as in a forked child, which shares the memory of the ring."""
        if self._ring is not None:
            self._ring.detach()

    def enter_fast_path(self, per_backward: tuple[float, float]) -> None:
        """Sets the usual samples and tokens of a backward pass; 0 for unknown."""
        self._per_backward = per_backward

    def close(self, row: Row) -> None:
        """Stores the step of a closed row; never raises."""
        ring = self._ring
        if ring is None:
            return
        try:
            if row.step == self._stored:
                seconds, overhead = row.scalars.get("step_seconds", ABSENT_NUMBER), row.scalars["overhead_seconds"]
                ring.amend(row.step, row.time, seconds, overhead)
            else:
                self._put(row, row.time, row.scalars.get("step_seconds", ABSENT_NUMBER))
        except Exception as error:  # noqa: BLE001 - as in guard
            self._ring = None
            self._session.record_fault(self.name, error)

    def close_fast(self, number: int, step: FastStep) -> None:
        """Stores a closed step of the fast path."""
        ring = self._ring
        if ring is None:
            return
        if number == self._stored:
            ring.amend(number, step.time, step.seconds, step.overhead)
        else:
            self._put_fast(number, step, step.time, step.seconds, step.overhead)

    def _after_optimizer(self, optimizer: Any, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        """Stores an open step without a scaler, once all optimizers have stepped."""
        session = self._session
        row = session.row
        if row.step == self._stored or row.scaler_used or id(optimizer) not in row.stepped or self._ring is None:
            return
        if session.fast_path.active:
            step, began = session.fast_path.open_step()
            if step.is_scaled:
                return
            self._put_fast(row.step, step, time_ns(), perf_counter() - began, ABSENT_NUMBER)
        elif row.stepped.issuperset(map(id, session.watched.optimizers)):
            previous = session.probes.resources.previous
            self._put(row, time_ns(), ABSENT_NUMBER if previous is None else perf_counter() - previous)

    def _put_fast(self, number: int, step: FastStep, time: int, seconds: float, overhead: float) -> None:
        assert self._ring is not None
        backwards, scale, loss = step.backwards, step.scale, self._known_loss(step.losses)
        samples, tokens = self._per_backward
        self._ring.put(
            number,
            time,
            seconds,
            overhead,
            0.0,
            1.0,
            0.0,
            ABSENT_NUMBER if loss is None else loss,
            backwards or ABSENT_NUMBER,
            samples * backwards or ABSENT_NUMBER,
            tokens * backwards or ABSENT_NUMBER,
            ABSENT_NUMBER if scale is None else scale,
            ABSENT_NUMBER if scale is None else step.growth_tracker or 0.0,
            ABSENT_NUMBER if scale is None else 0.0,
        )
        self._stored = number

    def _put(self, row: Row, time: int, seconds: float) -> None:
        assert self._ring is not None
        loss = self._known_loss(row.raw.get("losses", ()))
        applied, skipped, scaler = _outcome(row)
        self._ring.put(
            *(row.step, time, seconds, row.scalars.get("overhead_seconds", ABSENT_NUMBER)),
            *(float(self._session.follows), applied, skipped, ABSENT_NUMBER if loss is None else loss),
            *(row.raw.get("micro_batches", ABSENT_NUMBER), ABSENT_NUMBER, ABSENT_NUMBER, *scaler),
        )
        self._stored = row.step


Numbers = tuple[float, float, float]


def _outcome(row: Row) -> tuple[float, float, Numbers]:
    """Returns (applied, skipped, (scale, growth_tracker, found_inf)) of a row, as far as they are on the host."""
    updates: list[Update] = row.raw.get("updates", [])
    is_known = all(_is_known(update) for update in updates)
    if row.fused and not is_known:
        return ABSENT_NUMBER, ABSENT_NUMBER, _UNKNOWN
    skipped = len(skipped_in(row))
    applied = len(row.stepped | row.skipped) - skipped
    if not updates or not is_known:
        return applied, skipped, _UNKNOWN
    found_infs = sum([is_positive(found_inf) for update in updates for found_inf in update.found_infs.values()])
    scale, growth_tracker = min((update.scale.number(), update.growth_tracker.number()) for update in updates)
    return applied, skipped, (scale, growth_tracker, found_infs)


def _is_known(update: Update) -> bool:
    found_infs = [transfer for transfers in update.found_infs.values() for transfer in transfers]
    return all(transfer.on_host for transfer in (update.scale, update.growth_tracker, *found_infs))


_UNKNOWN = (ABSENT_NUMBER, ABSENT_NUMBER, ABSENT_NUMBER)
