"""One watched run in this process; composes probes, step boundary, schedule and journal."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable
from threading import enumerate as enumerate_threads
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ammeter.preparation.notes import Notes
from ammeter.recording.completed_steps import CompletedSteps
from ammeter.recording.directives.inbox import Inbox
from ammeter.recording.fast_path import FastPath
from ammeter.recording.loss_level import LossLevel
from ammeter.recording.losses import Losses
from ammeter.recording.newcomers import Newcomers
from ammeter.recording.own_scale import OwnScale
from ammeter.recording.probe_set import ProbeSet
from ammeter.recording.row import Row
from ammeter.recording.row_queue import RowQueue
from ammeter.recording.schedule.budget import Governor
from ammeter.recording.step_boundary import Boundary
from ammeter.recording.stream_columns import StreamColumns
from ammeter.recording.unobserved.backward import UnobservedBackward
from ammeter.recording.unobserved.steps import UnobservedSteps
from ammeter.redaction import text
from ammeter.torch_hooks.closures import Closure
from ammeter.torch_hooks.forward_calls import Forward
from ammeter.torch_hooks.hook_points import Group
from ammeter.torch_hooks.safe_callback import MAX_ERROR_CHARS, Guarded
from ammeter.wire.frames import Bye, Event, Hello

if TYPE_CHECKING:
    from ammeter.journal import Journal
    from ammeter.recording.context import ProbeKinds
    from ammeter.torch_hooks.targets import Watched

log = logging.getLogger("ammeter")


class Session(Guarded):
    """Records one run between attach() and close(), only in reaction to calls of the program.

    Attributes: see ProbeContext.
    """

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
        preparation: Notes | None = None,
    ) -> None:
        super().__init__()
        self.watched = watched
        self.preparation = preparation or Notes()
        self.replay = replay
        self.governor = Governor(budget, preset)
        self.journal = journal
        self.hello = hello
        self.columns = StreamColumns(hello, watched.tensors)
        self.own_scale = OwnScale()
        self.losses = Losses(self.columns, self.own_scale)
        self.loss_level = LossLevel()
        self.row = Row(0)
        self.rows = RowQueue(self)
        self.working = False
        self.follows = True
        self.forward = Forward(watched.models)
        self.closure = Closure()
        self.handles: list[Any] = []
        self._followed: list[Any] = []
        self._followed_group = Group(())
        self._on_close: Callable[[], Any] = lambda: None
        self.directives = Inbox(self)
        self.probes = ProbeSet(self, probes)
        self.completed_steps = CompletedSteps(self)
        self.newcomers = Newcomers(self)
        self.unobserved_steps = UnobservedSteps(self)
        self.unobserved_backward = UnobservedBackward(self)
        self.fast_path = FastPath(self)
        if replay:
            self.fast_path.disable()

    def attach(self) -> None:
        """Writes the hello and subscribes. No torch object is patched before this."""
        self.journal.hello(self.columns.hello())
        self.subscribe()
        _sessions.add(self)

    def subscribe(self) -> None:
        """Installs all callbacks; unsubscribe() removes exactly these, and the two may alternate."""
        boundary, guard = Boundary(self), self.guard("boundary", any_thread=False)
        self.handles += self.forward.attach()
        self.handles += self.newcomers.attach(guard)
        self.handles += self.unobserved_backward.attach(guard)
        self.handles += boundary.before_probes(guard)
        self.probes.attach(self.handles)
        self.handles += boundary.after_probes(guard)
        self.handles += self.completed_steps.attach()
        self.handles += self.fast_path.attach()
        self.handles.append(boundary.at_end(guard))
        self._followed_group = Group(self._followed)
        self.follows = True

    def unsubscribe(self) -> None:
        self.fast_path.detach()
        while self.handles:
            self.handles.pop().remove()
        self._followed = []

    def while_following(self, handles: list[Any]) -> list[Any]:
        """Marks subscriptions made in attach() as active only in followed steps."""
        self._followed += handles
        return handles

    def select_callbacks(self, *, is_urgent: bool) -> None:
        """Selects the callbacks of the next step: fast path, full or followed."""
        self.directives.poll()
        is_odd = self.fast_path.take_odd()
        follows = self.governor.follows(is_urgent or is_odd)
        self.fast_path.decide(follows=follows, is_urgent=is_urgent)
        if follows is not self.follows:
            self._follow(follows)

    def _follow(self, follows: bool) -> None:
        """Starts or stops following with the next step; on a start the probes reset."""
        self.follows = follows
        if not follows:
            self._followed_group.pause()
            return
        self._followed_group.resume()
        self.probes.reset()

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Notifies the probes that a scaler skipped this optimizer; its gradients are unchanged."""
        self.fast_path.leave()
        self.probes.skipped(optimizer)

    def skip_step(self) -> None:
        """Closes the open step as skipped by the scaler of a framework, of which no optimizer knows."""
        row = self.row
        for optimizer in self.watched.optimizers:
            if id(optimizer) not in row.stepped | row.skipped:
                row.skipped |= {id(optimizer)}
                self.skipped(optimizer)
        if row.skipped:
            self.rows.close_step()

    def joined(self, optimizer: torch.optim.Optimizer, line: str, *, replaces: bool) -> None:
        """Notifies the probes that an optimizer, which the program built at this line, is watched from now on."""
        self.unobserved_steps.joined()
        self.probes.joined(optimizer)
        data = {"optimizer": type(optimizer).__name__, "caller": line, "replaces": replaces}
        self.emit("optimizer.joined", data)

    def log(self, values: dict[str, Any]) -> None:
        """Records values for the last closed step, or the open step while it runs."""
        if self.fast_path.active:
            began = perf_counter()
            try:
                is_logged = self.fast_path.log(values)
            except Exception:  # noqa: BLE001 - another thread has left the fast path meanwhile
                is_logged = False
            self.charge(perf_counter() - began)
            if is_logged:
                return
        self.probes.user.log(values)

    def log_at(self, step: float, values: dict[str, Any]) -> None:
        """Logs values for an earlier step, whose row is already written."""
        self.probes.user.log_at(step, values)

    @property
    def last_step(self) -> int:
        """The last step in which an optimizer stepped or was skipped."""
        row = self.row
        return row.step if row.stepped or row.skipped else row.step - 1

    def write_rows(self) -> None:
        """Writes the rows that wait for run.log; later values for them are late."""
        self.guard("rows", any_thread=False)(self._write_waiting_rows)()

    def _write_waiting_rows(self) -> None:
        """Without a scaler, the last step waits for the next call of the program, which would close it."""
        self.fast_path.leave()
        if self.row.stepped and not self.row.scaler_used and self.watched.optimizers.at_most_one():
            self.rows.close_step()
        self.rows.flush()

    def emit(self, event: str, data: dict[str, Any]) -> None:
        """Adds an event to the open step."""
        self.row.events.append((event, data))

    def emit_late(self, event: str, data: dict[str, Any], step: int | None = None) -> None:
        """Writes an event for an already written step, by default the last one."""
        self.journal.append(Event(event, self.row.step - 1 if step is None else step, time.time_ns(), data))

    def failed(self, name: str, error: str) -> None:
        self.emit("probe.failed", {"probe": name, "error": error})
        if name == self.fast_path.name:
            self.fast_path.disable()
            self.fast_path.leave()

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
        if not trained or all(thread.ident != self.thread for thread in enumerate_threads()):
            self.thread = get_ident()
        if get_ident() != self.thread:
            self.watched.by_several_threads = True
        return get_ident() == self.thread

    def on_close(self, call: Callable[[], Any]) -> None:
        self._on_close = call

    def close(self, reason: str = "closed", message: str = "") -> bool:
        """Writes the remaining rows and the bye, removes all hooks and closes the journal.

        Returns:
            Whether this call ended the stream: False on a second call and in a forked child.
        """
        self.unsubscribe()
        if self.off:
            return False
        self.guard("last rows")(self._write_last_rows)()
        self.guard("bye")(self._write_bye)(reason, message)
        self.guard("journal")(self.journal.close)()
        self.off = True
        self._on_close()
        return True

    def _write_last_rows(self) -> None:
        self.fast_path.disable()
        self.fast_path.leave()
        if self.row.stepped or self.row.skipped:
            self.rows.close_step()
        self.rows.drain()
        self.directives.close()
        for event, data in self.row.events:
            self.journal.append(Event(event, max(0, self.row.step - 1), time.time_ns(), data))

    def _write_bye(self, reason: str, message: str) -> None:
        bye = Bye(reason, self.row.step - 1, time.time_ns(), text(message, MAX_ERROR_CHARS))  # type: ignore[arg-type]
        self.journal.append(bye)


def watching() -> list[Session]:
    """Returns the sessions of this thread that are attached and not closed."""
    return [session for session in _sessions if not session.off and session.handles and session.thread == get_ident()]


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _in_forked_child() -> None:
    for session in _sessions:
        session.switch_off()
        session.completed_steps.detach()


os.register_at_fork(after_in_child=_in_forked_child)
