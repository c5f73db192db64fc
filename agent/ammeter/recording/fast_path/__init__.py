"""The fast path: on steps of a few milliseconds, a few callbacks record a few numbers.

All callbacks together would cost a short step several percent. On the fast path only those of this package are active;
the other callbacks are paused. At the first sign of a fault all of them are active again within the same call, with the
same knowledge of the step as if it had not used the fast path.

Cost of watching a step of 2.8 ms, as a share of the bare step: 3.0 to 4.2 % with the fast path, 9.9 to 13.1 % without
it (bench/results/fast_path.md). `python -m bench.agent.fast_path` measures both; the fast path is worth its code while
it saves at least 3 %.

The rest of the agent uses FastPath and FastStep only. A probe may define these methods, each of them optional:

- before_fast_path(): removes callbacks of the closed step that are not paused;
- apply_fast_step(row, step, is_open): adds the probe's part of a fast step to a row;
- count_fast_steps(first, count): accounts for fast steps without special data;
- sees_zero_loss(root, loss): examines a loss of zero before backward() frees its graph.

To delete the package, remove the uses of `Session.fast_path` and these methods; `pauses(handles)` becomes `handles`.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import get_ident
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ammeter.recording.fast_path.buffer import Buffer
from ammeter.recording.fast_path.callbacks import Callbacks
from ammeter.recording.fast_path.steps import FastStep
from ammeter.tensors import async_copy
from ammeter.torch_hooks.hook_points import Group

if TYPE_CHECKING:
    from ammeter.recording.losses import BackwardLoss
    from ammeter.recording.row import Row
    from ammeter.recording.session import Session

__all__ = ["FULL_STEPS_AFTER_FAULT", "FastPath", "FastStep"]

FULL_STEPS_AFTER_FAULT = 16
"""Steps after a bad one that do not use the fast path: faults often recur within a few steps."""


class FastPath:
    """The fast path of one session.

    Attributes:
        active: whether the open step uses it; all other callbacks of paused subscriptions are inactive then.
    """

    name = "fast_path"

    def __init__(self, session: Session) -> None:
        self.active = False
        self._session = session
        self._enabled = True
        self._full_steps = 0
        self._is_odd = False
        self._early: set[str] = set()
        self._paused: list[Any] = []
        self._group = Group(())
        self._buffer = Buffer(session, self)
        self._callbacks = Callbacks(session, self, self._buffer)
        probes = session.probes
        self._before = probes.methods("before_fast_path")
        self._apply = probes.methods("apply_fast_step")
        self._sees_zero_loss = probes.methods("sees_zero_loss")

    def attach(self) -> list[Any]:
        """Subscribes the callbacks of the fast path; called after all subscriptions that it pauses."""
        handles = self._callbacks.attach()
        self._group = Group(self._paused)
        self.active = False
        return handles

    def detach(self) -> None:
        """Leaves the fast path before all subscriptions end."""
        self._session.guard(self.name)(self.leave)()
        self._paused = []

    def pauses(self, handles: list[Any]) -> list[Any]:
        """Marks subscriptions made in attach() as paused on the fast path.

        They are active in steps with a reading, in followed steps and after a fault.
        """
        self._paused += handles
        return handles

    def is_possible(self) -> bool:
        """Whether the fast path can be used.

        It needs one optimizer, at most one scaler, and their numbers on the host.
        """
        return self._enabled and self._session.watched.at_most_one_each()

    def disable(self) -> None:
        """Disables the fast path for the rest of the run; a step that uses it may go on."""
        self._enabled = False

    def avoid(self, steps: int = 1) -> None:
        """Keeps the fast path off for the next steps."""
        self._full_steps = max(self._full_steps, steps)

    def leave(self, *, is_odd: bool = False) -> None:
        """Activates all callbacks from this point on.

        Args:
            is_odd: this step differs from earlier ones, perhaps in the order of its calls; the next step is followed.
        """
        if not self.active:
            return
        session = self._session
        self.active, self._is_odd = False, is_odd
        self._group.resume()
        session.forward.resume()
        with torch._C.DisableTorchFunction():
            session.probes.resources.previous = self._callbacks.end()

    def take_odd(self) -> bool:
        """Returns whether the last step differed from earlier ones, once."""
        is_odd, self._is_odd = self._is_odd, False
        return is_odd

    def decide(self, *, follows: bool, is_urgent: bool) -> None:
        """Enters or leaves the fast path with the next step.

        Args:
            follows: the next step is followed.
            is_urgent: the closed step was bad.
        """
        if is_urgent:
            self._full_steps = FULL_STEPS_AFTER_FAULT
        is_due = self._session.governor.due(self._session.row.step)
        needs_all = follows or self._full_steps or is_due or not self.is_possible()
        self._full_steps -= self._full_steps > 0
        if not needs_all and not self.active:
            self._enter()
        elif needs_all and self.active:
            self.leave()

    def open_step(self) -> tuple[FastStep, float]:
        """Returns the open step of the fast path, and when it began in seconds of perf_counter."""
        return self._callbacks.open_step()

    def log(self, values: dict[str, Any]) -> bool:
        """Records values from run.log; returns whether it could.

        Requires one number per value, on the host, and columns that exist already.
        """
        session = self._session
        numbers: dict[str, float] = {}
        for name, value in values.items():
            number = _number(value)
            if number is None:
                self.disable()
            if number is None or name not in session.columns.layout.scalars:
                if get_ident() == session.thread:
                    self.leave()
                return False
            numbers[name] = number
        return self._callbacks.log(numbers, is_early=not self._early.isdisjoint(values))

    def learn_logged(self, names: Iterable[str], *, is_early: bool) -> None:
        """Records whether the program logs these names before its optimizer steps (early) or after."""
        (self._early.update if is_early else self._early.difference_update)(names)

    def apply(self, row: Row, step: FastStep, *, is_open: bool = False) -> None:
        """Copies a fast step into a row.

        Args:
            is_open: the row is the open one, whose step continues.
        """
        step.copy_to(row, is_open=is_open)
        for apply_fast_step in self._apply:
            apply_fast_step(row, step, is_open)

    def sees_zero_loss(self, root: Any, loss: BackwardLoss) -> None:
        """Notifies the probes of a loss of zero."""
        for sees_zero_loss in self._sees_zero_loss:
            sees_zero_loss(root, loss)

    def _enter(self) -> None:
        session = self._session
        for before_fast_path in self._before:
            before_fast_path()
        self.active = True
        session.completed_steps.enter_fast_path(session.probes.resources.usual_counts(_ONE_BACKWARD))
        self._callbacks.begin(session.row.began)
        self._group.pause()
        session.forward.pause()


def _number(value: Any) -> float | None:
    """Returns one number that is on the host, else None."""
    if isinstance(value, _NUMBERS):
        return float(value)
    return async_copy.known(value) if type(value) is torch.Tensor else None


_NUMBERS = (float, int, np.number)
_ONE_BACKWARD = FastStep()
_ONE_BACKWARD.backwards = 1
