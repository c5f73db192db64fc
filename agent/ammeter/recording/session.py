"""One watched run in this process; composes probes, step boundary, schedule and journal."""

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
"""Maximum number of rows that wait for device data; if the device lags further, the oldest row is dropped and
counted."""

LAST_WAIT = 2.0
"""Maximum seconds that close() waits for device data; a hanging device must not block the end of the program."""

URGENT = frozenset(
    {"step.skipped", "gradient.nonfinite", "usage.clip_before_unscale", "weights.nonfinite", "moments.nonfinite"}
)
"""Events that are written when their step closes. Other rows wait for run.log and are written in batches."""

ALERT = 16
"""Steps after a bad one that do not use the fast path."""

HOLD_SECONDS = 0.02
HOLD_ROWS = 32
"""Non-urgent rows are written at the start of a step when they span HOLD_SECONDS or reach HOLD_ROWS in number."""


class Session(Guarded):
    """Records one run between attach() and close(), only in reaction to calls of the program."""

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
        """Writes the hello and subscribes. No torch object is patched before this."""
        self.journal.hello(self._described(self.schema))
        self.subscribe()
        _here.add(self)

    def subscribe(self) -> None:
        """Installs all callbacks; unsubscribe() removes exactly these, and the two may alternate."""
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
        """Marks subscriptions made in attach() as active only in followed steps."""
        self._followers += handles
        return handles

    def while_awake(self, handles: list[Any]) -> list[Any]:
        """Marks subscriptions made in attach() as inactive on the fast path.

        They are active in steps with a reading, in followed steps and after a fault.
        """
        self._readers += handles
        return handles

    def leave_fast_path(self, *, odd: bool = False) -> None:
        """Activates all callbacks from this point on.

        Args:
            odd: this step differs from earlier ones, perhaps in the order of its calls; the next step is followed.
        """
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
        """Accounts for steps on the fast path.

        Args:
            seconds, overhead: total duration, and the part of it spent in Ammeter.
            steps: number of steps.
            decide: decide whether the fast path continues.
        """
        if not steps:
            return
        self.governor.earn(seconds, overhead)
        self.governor.attention.steps += steps - decide
        if decide:
            self._attend(False)

    def write_rested(self, waiting: Waiting) -> None:
        """Writes fast-path steps without special data, after all waiting rows."""
        frames = self._finished()
        first, count = waiting.first, waiting.count
        if count:
            frames += waiting.take(self._said_layout(frames))
        self.journal.append(*frames)
        if count:
            for rested in self._resters:
                rested(first, count)

    def keep(self, row: Row) -> None:
        """Queues a row that is complete except for values from run.log."""
        self._closed.append(row)

    def apply_fast_step(self, row: Row, note: FastStep, *, here: bool = False) -> None:
        """Copies the notes of a fast-path step into a row.

        Args:
            here: the row is the open one, whose step continues.
        """
        for apply_fast_step in self._adopting:
            apply_fast_step(row, note, here)
        if note.logged:
            for name, value in note.logged.items():
                row.later(f"user:{name}", async_copy.number(float(value)))

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Notifies the probes that a scaler skipped this optimizer; its gradients are unchanged."""
        self.leave_fast_path()
        for look in self._on_skip:
            look(optimizer)

    def stay_awake(self, steps: int = 1) -> None:
        """Keeps the fast path off for the next steps."""
        self._alert = max(self._alert, steps)

    def _attach(self, probe: Any) -> None:
        """Attaches a probe; one that fails, such as in another torch version, is switched off."""
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
        """Logs values for an earlier step, whose row is already written."""
        self._user.log_at(step, values)

    @property
    def last_step(self) -> int:
        """The last step in which an optimizer stepped or was skipped."""
        row = self.row
        return row.step if row.stepped or row.skipped else row.step - 1

    def begin(self) -> None:
        """Marks that the program works on a new step, which completes earlier rows."""
        if not self.working:
            self.working = True
            self.write_old()

    def write_old(self) -> None:
        """Writes the rows that have waited long enough."""
        closed = self._closed
        if closed:
            began = closed[0].began  # read before any call, in which another thread may write the row
            if len(closed) >= HOLD_ROWS or perf_counter() - began >= HOLD_SECONDS:
                self._flush()

    def close_step(self) -> None:
        """Closes the step. Its row waits for run.log unless it is urgent."""
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
        """Returns the row for run.log: the last closed step's, or the open step's.

        None if the last closed row was written at once and the program has not begun another step.
        """
        if self.working or self.row.step == 0 or (not self.awake and self.resting.working):
            return self.row
        return self._closed[-1] if self._closed else None

    def emit_late(self, event: str, data: dict[str, Any], step: int | None = None) -> None:
        """Writes an event for an already written step, by default the last one."""
        self.journal.append(Event(event, self.row.step - 1 if step is None else step, time.time_ns(), data))

    def columns(self, names: Iterable[str], most: int) -> Container[str]:
        """Returns the scalar columns after adding these names.

        New columns are added until the program has `most` of its own.
        """
        new = [name for name in names if name not in self._layout.scalars]
        room = self._own_scalars + most - len(self.schema.scalars)
        if new and room > 0:
            self._describe(scalars=(*self.schema.scalars, *new[:room]))
        return self._layout.scalars

    def losses(
        self, caught: Sequence[Caught], attempts: Sequence[int] = (), *, in_turn: bool = False
    ) -> dict[str, float]:
        """Returns column -> loss of a finished step, adding columns for new losses.

        Must be called in the order of steps.
        """
        if self._losses.is_plain(caught) and not in_turn:
            return {LOSS: caught[0].number()}
        found = self._losses.of(caught, attempts, in_turn=in_turn)
        columns = self.columns(found, MAX_LOSS_COLUMNS)
        return {name: number for name, number in found.items() if name in columns}

    def emit(self, event: str, data: dict[str, Any]) -> None:
        """Adds an event to the open step."""
        self.row.events.append((event, data))

    def on_close(self, call: Callable[[], Any]) -> None:
        self._on_close = call

    def close(self, reason: str = "closed", message: str = "") -> bool:
        """Writes the remaining rows and the bye, removes all hooks and closes the journal.

        Returns:
            Whether this call ended the stream: False on a second call and in a forked child.
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
        """Selects the callbacks of the next step: fast path, full or followed."""
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
        """Starts or stops following with the next step; on a start the probes reset."""
        self.follows = follows
        if not follows:
            self._groups[0].rest()
            return
        self._groups[0].wake()
        for probe in self._probes:
            if hasattr(probe, "reset"):
                self.guard(probe.name)(probe.reset)()

    def trains_here(self) -> bool:
        """Whether the current thread is the training thread.

        A run is trained by one thread: the one that called watch(), or another that steps before the first has trained
        or after it has ended. If several threads train at the same time, each would close the steps of the others, so
        that only one is recorded.
        """
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
        """Writes all rows that are ready with one journal call."""
        self.journal.append(*self._finished())

    def _finished(self) -> list[Frame]:
        """Encodes the rows that are ready. Non-finite values are data and cause no numpy warning."""
        frames: list[Frame] = []
        if self._closed:
            with np.errstate(all="ignore"):
                while (row := self._next_closed()) is not None:
                    self._encode_row(row, frames)
        return frames

    def _next_closed(self) -> Row | None:
        """Removes and returns the oldest row if it is ready or too many wait.

        None otherwise, or if another thread removed it first.
        """
        try:
            if len(self._closed) > MAX_LATE_ROWS or self._closed[0].ready():
                return self._closed.popleft()
        except IndexError:
            pass
        return None

    def _encode_row(self, row: Row, frames: list[Frame]) -> None:
        """Finishes a row and appends its frames; may add events to the open row."""
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
        """Returns the current layout; a new one is announced first by a hello frame."""
        layout = self._layout
        if layout is not self._told:
            self._told = layout
            frames.append(self._described(layout.schema))
        return layout

    def _describe(self, **columns: Any) -> None:
        """Changes the schema of subsequent rows; a hello frame precedes the first of them."""
        self.schema = msgspec.structs.replace(self.schema, **columns)
        self._layout = Layout(self.schema)

    def _described(self, schema: Schema) -> Hello:
        return msgspec.structs.replace(self._hello, schema=schema)


def watching() -> list[Session]:
    """Returns the sessions of this thread that are attached and not closed."""
    return [each for each in _here if not each._off and each._handles and each.thread == get_ident()]


_here: weakref.WeakSet[Session] = weakref.WeakSet()


def _in_forked_child() -> None:
    for session in _here:
        session.switch_off()


os.register_at_fork(after_in_child=_in_forked_child)
