"""One watched run in this process: composes probes, boundary, schedule and journal."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from threading import enumerate as enumerate_threads
from threading import get_ident
from time import perf_counter
from typing import Any

import msgspec
import numpy as np
import torch

from ammeter.journal import Journal
from ammeter.recording.budget import Governor
from ammeter.recording.context import ProbeKinds
from ammeter.recording.fast_notes import FastStep, Waiting
from ammeter.recording.fast_path import Resting
from ammeter.recording.losses import MAX_LOSS_COLUMNS, Caught, Losses
from ammeter.recording.row import Layout, Row
from ammeter.recording.step_boundary import Boundary
from ammeter.redaction import text
from ammeter.tensors import async_copy
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.closures import Closure
from ammeter.torch_hooks.forward_calls import Forward
from ammeter.torch_hooks.safe_callback import Guarded
from ammeter.torch_hooks.targets import Watched
from ammeter.wire.frames import LOSS, STATS, Bye, Event, Frame, Hello, Lost, Schema, Steps

log = logging.getLogger("ammeter")

MAX_LATE_ROWS = 64
"""Rows that wait for numbers from the device; a device that far behind loses the oldest, counted."""

LAST_WAIT = 2.0
"""Seconds that close() waits at most for numbers from the device; a device that hangs must not hold up the end."""

URGENT = frozenset(
    {"step.skipped", "gradient.nonfinite", "usage.clip_before_unscale", "weights.nonfinite", "moments.nonfinite"}
)
"""Events that are written when their step closes. Other rows wait for run.log, and to be written several at once."""

ALERT = 16
"""Steps behind a bad one in which nobody rests."""

HOLD_SECONDS = 0.02
HOLD_ROWS = 32
"""Rows that are not urgent are written when a step begins and they cover this much time, or are this many."""


class Session(Guarded):
    """attach() starts it, close() ends it; in between it only reacts to what the program calls."""

    def __init__(
        self,
        watched: Watched,
        journal: Journal,
        hello: Hello,
        budget: float,
        preset: str,
        probes: ProbeKinds,
        *,
        replay: bool = False,
    ) -> None:
        super().__init__()
        self.watched = watched
        self.replay = replay
        self.governor = Governor(budget, preset)
        self.journal = journal
        self.schema = Schema(stats=tuple(STATS), tensors=tuple(watched.tensors))
        self._layout = self._told = Layout(self.schema)
        self._own_scalars = len(self.schema.scalars)
        self.row = Row(0)
        self._hello = hello
        self.working = False
        self._closed: deque[Row] = deque()
        self.follows = self.awake = True
        self._alert = 0
        self._odd = False
        self._followers: list[Any] = []
        self._readers: list[Any] = []
        self._groups = patch.Group(()), patch.Group(())
        self._handles: list[Any] = []
        self._on_close: Callable[[], Any] = lambda: None
        self.forward = Forward(watched.models)
        self.closure = Closure()
        self._losses = Losses()
        self._resources = probes.resources(self)
        self._user = probes.user(self)
        self._probes: list[Any] = [*(kind(self) for kind in probes.signals), self._resources]
        self._on_skip: list[Callable[[torch.optim.Optimizer], None]] = [
            self.guard(probe.name)(probe.skipped) for probe in self._probes if hasattr(probe, "skipped")
        ]
        self._resters = [probe.skip_steps for probe in self._probes if hasattr(probe, "skip_steps")]
        self.counted = self._resources.counted
        self._adopting = [probe.apply_fast_step for probe in self._probes if hasattr(probe, "apply_fast_step")]
        self._wanting = [probe.wants for probe in self._probes if hasattr(probe, "wants")]
        self.resting = Resting(self)
        if replay:
            self.resting.never()
        self._finishing = [
            (probe.name, probe.finish) for probe in (*self._probes, self._user) if hasattr(probe, "finish")
        ]

    def attach(self) -> None:
        """Writes the hello and subscribes. Nothing of torch is touched before this."""
        self.journal.hello(self._described(self.schema))
        self.subscribe()
        _here.add(self)

    def subscribe(self) -> None:
        """Hooks in; unsubscribe() undoes exactly this, and the two may alternate."""
        boundary, guard = Boundary(self), self.guard("boundary", any_thread=False)
        self._handles += self.forward.attach()
        self._handles += boundary.before_probes(guard)
        for probe in (*self._probes, self._user):
            self._attach(probe)
        self._handles += boundary.after_probes(guard)
        self._handles += self.resting.attach()
        self._groups = patch.Group(self._followers), patch.Group(self._readers)
        self.follows = self.awake = True

    def while_following(self, handles: list[Any]) -> list[Any]:
        """Of attach(): what is only heard in steps in which the order of calls is followed."""
        self._followers += handles
        return handles

    def while_awake(self, handles: list[Any]) -> list[Any]:
        """Of attach(): what is only heard in steps in which something is read or followed, or went wrong."""
        self._readers += handles
        return handles

    def leave_fast_path(self, *, odd: bool = False) -> None:
        """Everything is heard from here on. odd: for something in this step is not as in those before it, perhaps the
        order of its calls, which is followed from the next one on."""
        if self.awake:
            return
        self.working, self.awake, self._odd = self.resting.working, True, odd
        self._groups[1].wake()
        self.forward.wake()
        with torch._C.DisableTorchFunction():
            self._resources.previous = self.resting.end()

    def _enter_fast_path(self) -> None:
        self.awake = False
        self.resting.begin(self.row.began)
        self._groups[1].rest()
        self.forward.rest()

    def skip_steps(self, seconds: float, overhead: float, steps: int, *, decide: bool = False) -> None:
        """So many steps were rested in. decide: whether to go on."""
        if not steps:
            return
        self.governor.earn(seconds, overhead)
        self.governor.attention.steps += steps - decide
        if decide:
            self._attend(False)

    def write_rested(self, waiting: Waiting) -> None:
        """Writes steps in which nothing special was, behind all rows that wait."""
        frames = self._finished()
        first, count = waiting.first, waiting.count
        if count:
            frames += waiting.take(self._said_layout(frames))
        self.journal.append(*frames)
        if count:
            for rested in self._resters:
                rested(first, count)

    def keep(self, row: Row) -> None:
        """A row that is complete but for what run.log may say."""
        self._closed.append(row)

    def apply_fast_step(self, row: Row, note: FastStep, *, here: bool = False) -> None:
        """Brings what was noted into a row; here: into the open one, whose step goes on."""
        for apply_fast_step in self._adopting:
            apply_fast_step(row, note, here)
        if note.logged:
            for name, value in note.logged.items():
                row.later(f"user:{name}", async_copy.number(float(value)))

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """The scaler kept this optimizer from its step; the gradients are still as they were."""
        self.leave_fast_path()
        for look in self._on_skip:
            look(optimizer)

    def stay_awake(self, steps: int = 1) -> None:
        """The next steps are to be heard, too."""
        self._alert = max(self._alert, steps)

    def _attach(self, probe: Any) -> None:
        """A probe that does not find what it looks for, in another version of torch, is off; the others go on."""
        try:
            with patch.all_or_nothing():
                self._handles += probe.attach(self.guard(probe.name, any_thread=getattr(probe, "any_thread", False)))
        except Exception as error:  # noqa: BLE001 - as in guard
            self._fault(probe.name, error)

    def unsubscribe(self) -> None:
        self.guard(self.resting.name)(self.leave_fast_path)()
        while self._handles:
            self._handles.pop().remove()
        self._followers, self._readers = [], []

    def log(self, values: dict[str, Any]) -> None:
        if self.awake:
            self._user.log(values)
            return
        began = perf_counter()
        try:
            taken = self.resting.log(values, self._layout.scalars)
        except Exception:  # noqa: BLE001 - another thread has had the session wake meanwhile
            taken = False
        self._overhead += perf_counter() - began
        if not taken:
            self._user.log(values)

    def log_at(self, step: float, values: dict[str, Any]) -> None:
        """The same about an earlier step, whose row is written."""
        self._user.log_at(step, values)

    @property
    def last_step(self) -> int:
        """The last step in which an optimizer stepped or was kept from it."""
        row = self.row
        return row.step if row.stepped or row.skipped else row.step - 1

    def begin(self) -> None:
        """The program works on a new step: what was said about the last one is complete."""
        if not self.working:
            self.working = True
            self.write_old()

    def write_old(self) -> None:
        """Writes the rows that have waited long enough."""
        closed = self._closed
        if closed:
            began = closed[0].began  # before any call, in which another thread may write it
            if len(closed) >= HOLD_ROWS or perf_counter() - began >= HOLD_SECONDS:
                self._flush()

    def close_step(self) -> None:
        """The step has ended. Its row waits for run.log, unless it has something to tell at once."""
        self.working = False
        row, self.row = self.row, Row(self.row.step + 1)
        row.stamp()
        self._resources.close(row)
        self._closed.append(row)
        urgent = bool(row.urgent or row.skipped or (row.events and any(event in URGENT for event, _ in row.events)))
        row.scalars["calls_followed"] = self.follows
        self._attend(urgent)
        if urgent:
            self._flush()
        elif len(self._closed) > HOLD_ROWS:
            self.write_old()

    def loggable(self) -> Row | None:
        """The row that run.log speaks of: of the step that closed last, or of the one the program works on now.

        None when the step closed, was written at once, and the program does not work on another yet.
        """
        if self.working or self.row.step == 0 or (not self.awake and self.resting.working):
            return self.row
        return self._closed[-1] if self._closed else None

    def emit_late(self, event: str, data: dict[str, Any], step: int | None = None) -> None:
        """Something is said about a step whose row is written, the one that closed last unless it is another."""
        self.journal.append(Event(event, self.row.step - 1 if step is None else step, time.time_ns(), data))

    def columns(self, names: Iterable[str], most: int) -> Container[str]:
        """Those of the names that have a scalar column now: all, unless the program has `most` of its own already."""
        new = [name for name in names if name not in self._layout.scalars]
        room = self._own_scalars + most - len(self.schema.scalars)
        if new and room > 0:
            self._describe(scalars=(*self.schema.scalars, *new[:room]))
        return self._layout.scalars

    def losses(
        self, caught: Sequence[Caught], attempts: Sequence[int] = (), *, in_turn: bool = False
    ) -> dict[str, float]:
        """Column -> loss of a step that is finished, in the order of steps. New columns are made for new losses."""
        if self._losses.is_plain(caught) and not in_turn:
            return {LOSS: caught[0].number()}
        found = self._losses.of(caught, attempts, in_turn=in_turn)
        columns = self.columns(found, MAX_LOSS_COLUMNS)
        return {name: number for name, number in found.items() if name in columns}

    def emit(self, event: str, data: dict[str, Any]) -> None:
        """Something happened in the open step."""
        self.row.events.append((event, data))

    def on_close(self, call: Callable[[], Any]) -> None:
        self._on_close = call

    def close(self, reason: str = "closed", message: str = "") -> bool:
        """Writes what is left and the bye, takes every hook away, and gives the journal back.

        Whether the stream ended by this: not for the second time, and not in a forked child.
        """
        self.unsubscribe()
        if self._off:
            return False
        self.guard("last rows")(self._last_rows)()
        self.guard("bye")(self._bye)(reason, message)
        self.guard("journal")(self.journal.close)()
        self._off = True
        self._on_close()
        return True

    def _attend(self, urgent: bool) -> None:
        """How closely the next step is looked at."""
        follows = self.governor.follows(urgent or self._odd)
        self._odd = False
        if urgent:
            self._alert = ALERT
        wanted = not self.awake and any(wants() for wants in self._wanting)
        awake = bool(follows or self._alert or wanted or self.governor.due() or not self.resting.able())
        self._alert -= self._alert > 0
        if awake is not self.awake:
            self.leave_fast_path() if awake else self._enter_fast_path()
        if follows is not self.follows:
            self._follow(follows)

    def _follow(self, follows: bool) -> None:
        """From the next step on the order of calls is followed, by probes that begin anew, or is not."""
        self.follows = follows
        if not follows:
            self._groups[0].rest()
            return
        self._groups[0].wake()
        for probe in self._probes:
            if hasattr(probe, "reset"):
                self.guard(probe.name)(probe.reset)()

    def trains_here(self) -> bool:
        """Whether this thread is the one that trains. A run is what one thread trains: that which called watch(), or
        another that steps before it did or when it is gone. Of several that train at the same time, each would close
        the others' steps."""
        if get_ident() == self.thread:
            return True
        row = self.row
        trained = row.step or row.stepped or row.skipped or row.scaler_used
        if not trained or all(each.ident != self.thread for each in enumerate_threads()):
            self.thread = get_ident()
        if get_ident() != self.thread:
            self.watched.by_several_threads = True
        return get_ident() == self.thread

    def _last_rows(self) -> None:
        self.resting.never()
        self.leave_fast_path()
        if self.row.stepped or self.row.skipped:
            self.close_step()
        self._flush()
        deadline = time.monotonic() + LAST_WAIT
        while self._closed:
            row = self._closed.popleft()
            frames: list[Frame] = []
            while not row.ready() and time.monotonic() < deadline:
                time.sleep(0.001)
            with np.errstate(all="ignore"):
                self._encode_row(row, frames)
            self.journal.append(*frames)
        for event, data in self.row.events:
            self.journal.append(Event(event, max(0, self.row.step - 1), time.time_ns(), data))

    def _bye(self, reason: str, message: str) -> None:
        message = text(message, 500)
        self.journal.append(Bye(reason, self.row.step - 1, time.time_ns(), message))  # type: ignore[arg-type]

    def _flush(self) -> None:
        """Writes what waits, as one piece."""
        self.journal.append(*self._finished())

    def _finished(self) -> list[Frame]:
        """The rows that wait no longer. Non-finite numbers are data here, and no warning to the program."""
        frames: list[Frame] = []
        if self._closed:
            with np.errstate(all="ignore"):
                while (row := self._next_closed()) is not None:
                    self._encode_row(row, frames)
        return frames

    def _next_closed(self) -> Row | None:
        """The oldest row that waits, if it waits no longer. None, too, where another thread was quicker."""
        try:
            if len(self._closed) > MAX_LATE_ROWS or self._closed[0].ready():
                return self._closed.popleft()
        except IndexError:
            pass
        return None

    def _encode_row(self, row: Row, frames: list[Frame]) -> None:
        """Finishes a row, which may add to the open one's events, and puts what is to be written behind the others."""
        if not row.ready():
            frames.append(Lost("device-late", 1, len(row.events)))
            return
        faults = self.faults
        for name, finish in self._finishing:
            if name not in faults:
                try:
                    finish(row)
                except Exception as error:  # noqa: BLE001 - as in guard
                    self._fault(name, error)
        if len(self.watched.tensors) != len(self.schema.tensors):
            self._describe(tensors=tuple(self.watched.tensors))
        layout = self._said_layout(frames)
        frames.append(Steps(row.step, row.time, row.values(layout)))
        for event, data in row.events:
            frames.append(Event(event, row.step, row.time, data))

    def failed(self, name: str, error: str) -> None:
        self.row.events.append(("probe.failed", {"probe": name, "error": error}))
        if name == self.resting.name:
            self.resting.never()
            self.leave_fast_path()

    def _said_layout(self, frames: list[Frame]) -> Layout:
        """The layout to write with, which is said first where it is new."""
        layout = self._layout
        if layout is not self._told:
            self._told = layout
            frames.append(self._described(layout.schema))
        return layout

    def _describe(self, **columns: Any) -> None:
        """Rows that are written from now on have other columns, which is said before the first of them."""
        self.schema = msgspec.structs.replace(self.schema, **columns)
        self._layout = Layout(self.schema)

    def _described(self, schema: Schema) -> Hello:
        return msgspec.structs.replace(self._hello, schema=schema)


def watching() -> list[Session]:
    """The sessions of this thread that have not ended and have their hooks in."""
    return [each for each in _here if not each._off and each._handles and each.thread == get_ident()]


_here: weakref.WeakSet[Session] = weakref.WeakSet()


def _in_forked_child() -> None:
    for session in _here:
        session.switch_off()


os.register_at_fork(after_in_child=_in_forked_child)
