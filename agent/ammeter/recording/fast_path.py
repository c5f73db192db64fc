"""The fast path: notes a few numbers per step while steps are short.

The full set of callbacks would cost a short step several percent. On the fast path only a few calls have callbacks,
those of this module. At the first sign of something unusual the session leaves the fast path within the same call, with
the same knowledge of the step as if it had not used it. Notes become rows about ten times per second.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable
from functools import partial
from threading import get_ident
from time import perf_counter, time_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.amp.grad_scaler import OptState

from ammeter.recording.fast_notes import FastStep, Waiting
from ammeter.recording.losses import Caught
from ammeter.recording.row import Row
from ammeter.tensors import async_copy
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.clip_calls import CLIP_TELLS_NORM, clip_function
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.loss_graph import look

if TYPE_CHECKING:
    from ammeter.recording.session import Session

FLUSH_SECONDS = 0.1
FLUSH_NOTES = 96
"""Notes become rows when they span FLUSH_SECONDS or exceed FLUSH_NOTES; then the session decides whether the fast path
continues."""

FULL_ROW_NS = 10**9
"""Interval in ns between rows that all probes finish."""


class Resting:
    """The fast path of one session.

    begin() starts it with a step that has just begun; end() returns control to the full callbacks.
    """

    name = "resting"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._able = True
        self._note = FastStep()
        self._notes: list[FastStep] = []
        self._waiting = Waiting(FLUSH_NOTES + 1)
        self._passed = (0.0, 0.0, 0)
        """Seconds, seconds spent in Ammeter, and number of the steps that became rows since the last decision."""
        self.working = False
        self._early: set[str] = set()
        self._optimizer: Callable[[], Any] = _nobody
        self._scaler: Callable[[], Any] = _nobody
        self._ids = frozenset[int]()
        self._previous = self._flushed = 0.0
        self._epoch = self._due = 0

    def attach(self) -> list[Any]:
        guard = partial(self._session.lightly, self.name)
        kinds = self._session.watched.scaler_kinds
        self._notes, self._note = [], FastStep()
        self._clip_place = patch.function(*clip_function(), before=guard(self._clip))
        self._backward_place = patch.backward(before=guard(self._backward))
        self._unscaled = patch.Group([self._backward_place])
        self._unscaled.rest()
        self._step_place = patch.stepping(guard(self._stepping, any_thread=True))
        others = [
            *(self._clip_place, self._step_place),
            *patch.methods(kinds, "scale", before=guard(self._scale)),
            *patch.methods(kinds, "update", before=guard(self._update), after=guard(self._updated)),
        ]
        self._group = patch.Group(others)
        self._group.rest()
        return [*others, self._backward_place]

    def logs(self, names: Iterable[str], *, early: bool) -> None:
        """Records that the program logs these names before its optimizer steps (early) or after."""
        (self._early.update if early else self._early.difference_update)(names)

    def able(self) -> bool:
        """Whether the fast path can be used.

        It needs one optimizer, at most one scaler, and their numbers on the host.
        """
        return self._able and self._session.watched.alone()

    def never(self) -> None:
        """Disables the fast path for the rest of the run."""
        self._able = False

    def begin(self, now: float) -> None:
        """Starts with the step that began now, in seconds of perf_counter."""
        watched = self._session.watched
        (optimizer,) = watched.optimizers
        self._optimizer, self._ids = weakref.ref(optimizer), frozenset({id(optimizer)})
        scaler = next((each for each in watched.scalers if each.is_enabled()), None)
        self._scaler = _nobody if scaler is None else weakref.ref(scaler)
        self._group.wake()
        if scaler is None:  # with a scaler, scale() receives the loss
            self._unscaled.wake()
        self._begin_flush(perf_counter())
        self._previous = now
        self.working = False
        self._note = FastStep()

    def end(self) -> float:
        """Writes all notes to the session's rows; returns when the open step began."""
        self._group.rest()
        self._unscaled.rest()
        session = self._session
        self._put_all(but=1)
        for note in self._notes:
            self._keep(note, session.row.step - 1)
        self._notes.clear()
        session.skip_steps(*self._take_passed())
        session.apply_fast_step(session.row, self._note, here=True)
        return self._previous

    def log(self, values: dict[str, Any], columns: Container[str]) -> bool:
        """Notes values from run.log; returns whether it could.

        Requires one number per value, on the host, and columns that exist already.
        """
        numbers: dict[str, float] = {}
        early = not self._early.isdisjoint(values)
        for name, value in values.items():
            number = None
            if isinstance(value, _NUMBERS):
                number = float(value)
            elif type(value) is torch.Tensor:
                number = async_copy.known(value)
            if number is None:
                self.never()
            if number is None or name not in columns:
                if get_ident() == self._session.thread:
                    self._session.leave_fast_path()
                return False
            numbers[name] = number
        if early and self._session.row.stepped and not self._note.scaled:
            self._close()
        self.working = self.working or early
        note = self._note if self.working else self._notes[-1] if self._notes else None
        if note is None:
            return False
        note.logged = {**note.logged, **numbers} if note.logged else numbers
        return True

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if patch.inside_backward():
            return
        if self._session.row.stepped and not self._goes_on():
            self._again(self._backward_place.place, 0, args, kwargs)
            return
        note, self.working = self._note, True
        root = patch.outputs(args, kwargs)
        loss = async_copy.known(root)
        if loss is None or loss - loss != 0:
            note.passes = note.backwards + 1
            self._unusual(loss, self._backward_place.place, args, kwargs)
            return
        note.losses.append(Caught((async_copy.number(loss),), look(root), call_site.place()))
        note.backwards += 1

    def _scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not args[0].is_enabled():
            return
        goes_on = not self._session.row.stepped or self._goes_on()
        note, self.working = self._note, True
        root = args[1] if len(args) > 1 else kwargs.get("outputs")
        loss = async_copy.known(root)
        if not goes_on or loss is None or loss - loss != 0 or args[0] is not self._scaler():
            note.passes = note.backwards + 1
            self._unusual(loss, patch.place(type(args[0]), "scale"), args, kwargs)
            return
        if note.scaled and _stage(args[0], self._optimizer()) is not OptState.READY:
            self._again(patch.place(type(args[0]), "scale"), 0, args, kwargs)
            return
        note.losses.append(Caught((async_copy.number(loss),), look(root), call_site.place()))
        note.backwards += 1
        note.scaled = True

    def _clip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        known = async_copy.known(args[2] if len(args) > 2 else kwargs.get("total_norm")) if CLIP_TELLS_NORM else 0.0
        scaled = self._note.scaled and _stage(self._scaler(), self._optimizer()) is OptState.READY
        if known is None or known - known != 0 or scaled:
            self._unusual(known, self._clip_place.place, args, kwargs)

    def _unusual(self, number: float | None, place: patch.Place, *args: Any) -> None:
        """Leaves the fast path; disables it if the number is not on the host."""
        if number is None:
            self.never()
        self._again(place, 0, *args)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Handles step() from any thread, because another one may become the training thread."""
        session = self._session
        if optimizer is not self._optimizer() and optimizer not in session.watched.optimizers:
            return
        if closure_in(args, kwargs) is not None:  # a closure may call anything
            self.never()
        elif get_ident() == session.thread and optimizer is self._optimizer():
            if not session.row.stepped or self._goes_on():
                session.row.stepped, self.working = self._ids, True
                return
        elif not session.trains_here():
            return
        self._again(self._step_place.place, 0, optimizer, args, kwargs)

    def _update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, note = args[0], self._note
        if not scaler.is_enabled():
            return
        if note.scaled and self._session.row.stepped and scaler is self._scaler():
            states = list(scaler._per_optimizer_states.values())
            founds = list(states[0]["found_inf_per_device"].values()) if len(states) == 1 else []
            if len(founds) == 1 and async_copy.known(founds[0]) == 0.0:
                note.scale, note.growth_tracker = (
                    async_copy.known(scaler._scale),
                    async_copy.known(scaler._growth_tracker),
                )
                return
        self._skipped(scaler)
        self._again(patch.place(type(scaler), "update"), 0, args, kwargs)

    def _skipped(self, scaler: Any) -> None:
        """Records the skip as the full callbacks around step() do, and notifies the probes."""
        session, optimizer = self._session, self._optimizer()
        session.leave_fast_path(odd=True)
        if _stage(scaler, optimizer) is OptState.STEPPED:
            session.row.scaler_used = self._ids
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                session.row.fused = self._ids
            if not session.row.stepped:
                session.row.skipped = self._ids
            with torch._C.DisableTorchFunction():
                if session.row.skipped or session.watched.overflowed(optimizer):
                    session.skipped(optimizer)

    def _updated(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if self._note.scale is not None and args[0] is self._scaler():
            self._note.after = async_copy.known(args[0]._scale)
            self._close()

    def _goes_on(self) -> bool:
        """Handles a call after the optimizer's step, which begins a new step.

        Returns:
            Whether the fast path continues. It does not in a step with a scaler, in which update() should have come
                first.
        """
        if self._note.scaled:
            self._session.leave_fast_path(odd=True)
            self._session.stay_awake()  # also for the step that begins with this call
        else:
            self._close()
        return not self._session.awake

    def _close(self) -> None:
        session, note, now = self._session, self._note, perf_counter()
        note.seconds, self._previous = now - self._previous, now
        note.time, note.overhead = self._epoch + int(now * 1e9), session.take_overhead()
        row = session.row
        if row.events or row.transfers or row.raw or row.scalars:
            note.row = row
            session.row = Row(row.step + 1)
        else:
            row.step += 1
            row.stepped, row.began = _NO_IDS, now
        self._notes.append(note)
        self._note, self.working = FastStep(), False
        if now - self._flushed >= FLUSH_SECONDS or len(self._notes) > FLUSH_NOTES or note.row is not None:
            self._flush(now)

    def _flush(self, now: float) -> None:
        """Writes all notes but the last, which waits for run.log."""
        self._begin_flush(now)
        if len(self._notes) > 1:
            self._put_all(but=1)
            self._session.skip_steps(*self._take_passed(), decide=True)

    def _begin_flush(self, now: float) -> None:
        self._flushed, self._epoch = now, time_ns() - int(now * 1e9)

    def _take_passed(self) -> tuple[float, float, int]:
        passed, self._passed = self._passed, (0.0, 0.0, 0)
        return passed

    def _put_all(self, but: int = 0) -> None:
        """Moves the notes to rows, except the last `but`."""
        notes, step = self._notes, self._session.row.step - len(self._notes)
        count = len(notes) - but
        for at in range(count):
            self._put(notes[at], step + at)
        del notes[:count]
        self._session.write_rested(self._waiting)

    def _put(self, note: FastStep, step: int) -> None:
        """Moves a note to the rows.

        One note per FULL_ROW_NS is finished by all probes like any row, which keeps occasional values current. Notes
        without special data are packed.
        """
        seconds, overhead, count = self._passed
        self._passed = seconds + note.seconds, overhead + note.overhead, count + 1
        waiting = self._waiting
        if note.row is None and note.after == note.scale and note.time < self._due:
            if not waiting.count:
                waiting.first = step
            waiting.add(
                note, self._session.losses(note.losses) if note.losses else _NO_LOSS, *self._session.counted(note)
            )
        else:
            self._due = note.time + FULL_ROW_NS
            self._session.write_rested(waiting)
            self._keep(note, step)

    def _keep(self, note: FastStep, step: int) -> None:
        """Queues a note as a row that is complete except for values from run.log."""
        session = self._session
        row = note.row or Row(step)
        row.stepped, row.time = self._ids, note.time
        row.scalars["step_seconds"], row.scalars["overhead_seconds"] = note.seconds, note.overhead
        row.scalars["calls_followed"] = False
        session.apply_fast_step(row, note)
        session.keep(row)

    def _again(self, place: patch.Place, part: int, *args: Any) -> None:
        """Leaves the fast path and repeats this call's callbacks with the full set."""
        self._session.leave_fast_path(odd=True)
        self._session.replay_call(place.calls[part], *args)


def _nobody() -> None:
    return None


def _stage(scaler: Any, optimizer: Any) -> OptState:
    """Returns the scaler's state for this optimizer in this step."""
    state = getattr(scaler, "_per_optimizer_states", _NO_STATES).get(id(optimizer))
    return OptState.READY if state is None else state["stage"]


_NO_IDS: frozenset[int] = frozenset()
_NO_STATES: dict[int, Any] = {}
_NO_LOSS: dict[str, float] = {}
_NUMBERS = (float, int, np.number)
