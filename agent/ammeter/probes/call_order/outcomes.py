"""Reports schedules that advance on skipped steps, and steps that only some optimizers apply."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any

import msgspec
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ammeter.probes.call_order.usage_events import UsageEvents, is_power_of_two, name_of
from ammeter.recording.scaler_updates import skipped_in
from ammeter.torch_hooks import call_site, patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


MIN_CALIBRATING_MOVES = 16
"""Moves before the first applied step from which they count. Fewer are usual: the scaler calibrates. A scale that falls
from 2^24 to 2^8 skips so many steps."""


class Record(msgspec.Struct):
    """The record of one optimizer.

    Attributes:
        applied: applied steps.
        lopsided: steps of its scaler that only some optimizers applied.
        scheduled: moves of its schedules.
        ahead: moves of a schedule with only skipped attempts since the previous move.
        calibrating: such moves before the first applied step, which count as ahead with it if they are many.
        attempts_since: attempts since the last move.
        applied_since: applied steps since the last move.
        last: step of the last attempt.
        due: steps after which a schedule has moved, while their rows are not finished.
        line: line of the first move.
        scheduler: class of the schedule.
    """

    applied: int = 0
    lopsided: int = 0
    scheduled: int = 0
    ahead: int = 0
    calibrating: int = 0
    attempts_since: int = 0
    applied_since: int = 0
    last: int = 0
    due: list[int] = msgspec.field(default_factory=list)
    line: str = ""
    scheduler: str = ""


class Outcomes:
    """Reports moves after skipped steps and partly applied steps, with their counts.

    Each kind is reported at the 1st, 2nd, 4th, 8th ... time, because the share of such steps decides whether they
    matter.
    """

    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._records: dict[int, Record] = {}

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = [kind for kind in (*_kinds(LRScheduler), ReduceLROnPlateau) if "step" in vars(kind)]
        return patch.methods(kinds, "step", before=guard(self._scheduled))

    def finish(self, row: Row) -> None:
        attempted = row.stepped | row.skipped if row.skipped else row.stepped
        if not attempted:
            return
        skipped = skipped_in(row) if row.skipped or row.fused else _NO_OPTIMIZERS
        lopsided = self._lopsided(row, skipped) if skipped else None
        for key in attempted:
            record = self._records.get(key)
            if record is None:
                record = self._records[key] = Record()
            if record.due and record.due[0] < row.step:
                self._move(row, key, record, before=row.step)
            record.applied += key not in skipped
            record.attempts_since += 1
            record.last = row.step
            record.applied_since += key not in skipped
            if record.due and record.due[0] == row.step:
                self._move(row, key, record, before=row.step + 1)
        if lopsided:
            row.events.append(lopsided)

    def count_fast_steps(self, first: int, count: int) -> None:
        """Records `count` consecutive steps that the only optimizer has applied."""
        for optimizer in self._session.watched.optimizers:
            record = self._records.setdefault(id(optimizer), Record())
            moves = sum(step < first + count for step in record.due)
            del record.due[:moves]
            record.scheduled += moves
            record.applied += count
            record.last = first + count - 1
            record.attempts_since = record.applied_since = 1

    def _scheduled(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Records the move of a schedule; the step() in its constructor does not count."""
        scheduler = args[0]
        optimizer = getattr(scheduler, "optimizer", None)
        optimizer = (
            optimizer if optimizer in self._session.watched.optimizers else getattr(optimizer, "optimizer", None)
        )
        if optimizer not in self._session.watched.optimizers or _is_being_built(scheduler):
            return
        row = self._session.row
        step = row.step if id(optimizer) in row.stepped or id(optimizer) in row.skipped else row.step - 1
        record = self._records.setdefault(id(optimizer), Record())
        if not record.due or record.due[-1] != step:  # a composite schedule calls step() before its parts do
            record.due.append(step)
            record.scheduler = type(scheduler).__name__
            record.line = record.line or call_site.line()

    def _move(self, row: Row, key: int, record: Record, before: int) -> None:
        """Counts a schedule's move and reports one after skipped attempts only."""
        while record.due and record.due[0] < before:
            record.due.pop(0)
        if not record.attempts_since:
            return
        record.scheduled += 1
        ahead = record.applied_since == 0
        record.attempts_since = record.applied_since = 0
        if ahead and not record.applied:
            record.calibrating += 1
            return
        record.ahead += ahead
        is_due = ahead and is_power_of_two(record.ahead)
        if record.calibrating >= MIN_CALIBRATING_MOVES:
            record.ahead, record.calibrating, is_due = record.ahead + record.calibrating, 0, True
        if is_due:
            data = {
                "skipped": record.ahead,
                "scheduled": record.scheduled,
                "applied": record.applied,
                "last": record.last,
            }
            names = {"caller": record.line, "scheduler": record.scheduler, "optimizer": self._name(key)}
            row.events.append(("usage.scheduler_ahead", {**names, **data}))

    def _lopsided(self, row: Row, skipped: Set[int]) -> tuple[str, dict[str, Any]] | None:
        """Finds a step in which a scaler applied some of its optimizers and skipped others.

        It is reported only if all of these optimizers have applied a step before.
        """
        for update in row.raw.get("updates", ()):
            keys = [key for key in update.found_infs if key in row.stepped or key in row.skipped]
            skipped_keys = [key for key in keys if key in skipped]
            if not skipped_keys or len(skipped_keys) == len(keys):
                continue
            records = [self._records.setdefault(key, Record()) for key in keys]
            for record in records:
                record.lopsided += 1
            times = min(record.lopsided for record in records)
            if all(record.applied for record in records) and is_power_of_two(times):
                data = {
                    "skipped": [self._name(key) for key in skipped_keys],
                    "applied": [self._name(key) for key in keys if key not in skipped],
                }
                return "usage.lopsided_step", {**data, "scale": update.scale.number(), "times": times}
        return None

    def _name(self, key: int) -> str:
        """A name such as 'AdamW of head.weight'.

        The first parameter distinguishes two optimizers of one class.
        """
        watched = self._session.watched
        optimizer = next((candidate for candidate in watched.optimizers if id(candidate) == key), None)
        if optimizer is None:
            return ""
        indices = watched.parameters(optimizer)[1]
        return name_of(optimizer) + (f" of {watched.tensors[indices[0]].name}" if indices else "")


_NO_OPTIMIZERS: frozenset[int] = frozenset()


def _kinds(kind: type) -> list[type]:
    """A class and all its subclasses."""
    derived: list[type] = type.__subclasses__(kind)
    return [kind, *(subclass for one in derived for subclass in _kinds(one))]


def _is_being_built(scheduler: Any) -> bool:
    """Whether a schedule's step() runs in its constructor.

    Older versions of torch have no flag for this; last_epoch is then still negative.
    """
    initial = getattr(scheduler, "_is_initial", None)
    return getattr(scheduler, "last_epoch", 0) < 0 if initial is None else bool(initial)
