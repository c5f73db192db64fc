"""The callbacks of the fast path, which record the open step and detect faults."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from threading import get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from ammeter.recording import returned_losses
from ammeter.recording.fast_path.steps import FastStep
from ammeter.recording.losses import BackwardLoss
from ammeter.recording.row import Row
from ammeter.tensors import async_copy
from ammeter.torch_hooks import call_site, optimizer_steps, patch
from ammeter.torch_hooks.clip_calls import CLIP_REPORTS_NORM, clip_function
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.hook_points import Group, HookPoint
from ammeter.torch_hooks.loss_graph import summands

if TYPE_CHECKING:
    from ammeter.recording.fast_path import FastPath
    from ammeter.recording.fast_path.buffer import Buffer
    from ammeter.recording.session import Session


class Callbacks:
    """The callbacks of one session.

    begin() activates them with a step that has just begun; end() pauses them and completes the open row.
    """

    def __init__(self, session: Session, fast_path: FastPath, buffer: Buffer) -> None:
        self._session = session
        self._fast_path = fast_path
        self._buffer = buffer
        self._step = FastStep()
        self._optimizer: Callable[[], Any] = _none
        self._scaler: Callable[[], Any] = _none
        self._ids = frozenset[int]()
        self._previous = 0.0

    def attach(self) -> list[Any]:
        guard = partial(self._session.light_guard, self._fast_path.name)
        kinds = self._session.watched.scaler_kinds
        self._buffer.clear()
        self._step = FastStep()
        clip = patch.function(*clip_function(), before=guard(self._clip))
        backward = patch.backward(before=guard(self._backward))
        stepping = optimizer_steps.before(guard(self._stepping, any_thread=True))
        self._at_clip, self._at_backward, self._at_step = (handle.hook_point for handle in (clip, backward, stepping))
        grad = patch.function(torch.autograd, "grad", before=guard(self._grad))
        first_backward = patch.backward(before=guard(self._first_backward))
        self._at_grad = grad.hook_point
        self._without_scaler, self._without_backward = Group([backward]), Group([grad, first_backward])
        self._without_scaler.pause()
        self._without_backward.pause()
        handles = [
            clip,
            stepping,
            *patch.methods(kinds, "scale", before=guard(self._scale)),
            *patch.methods(kinds, "update", before=guard(self._update), after=guard(self._updated)),
        ]
        self._group = Group(handles)
        self._group.pause()
        return [*handles, backward, grad, first_backward]

    def begin(self, now: float) -> None:
        """Activates the callbacks for the step that began now, in seconds of perf_counter."""
        watched = self._session.watched
        (optimizer,) = watched.optimizers
        self._optimizer, self._ids = weakref.ref(optimizer), frozenset({id(optimizer)})
        scaler = next((scaler for scaler in watched.scalers if scaler.is_enabled()), None)
        self._scaler = _none if scaler is None else weakref.ref(scaler)
        self._group.resume()
        if not self._session.losses.are_of_backward:
            self._without_backward.resume()
        elif scaler is None:  # with a scaler, scale() receives the loss
            self._without_scaler.resume()
        self._buffer.begin(self._ids, perf_counter())
        self._previous = now
        self._step = FastStep()

    def open_step(self) -> tuple[FastStep, float]:
        """Returns the open step, and when it began in seconds of perf_counter."""
        return self._step, self._previous

    def end(self) -> float:
        """Writes all steps to the session's rows; returns when the open step began."""
        self._group.pause()
        self._without_scaler.pause()
        self._without_backward.pause()
        self._buffer.drain()
        self._fast_path.apply(self._session.row, self._step, is_open=True)
        return self._previous

    def log(self, numbers: dict[str, float], *, is_early: bool) -> bool:
        """Records values from run.log; returns whether there is a step for them.

        Args:
            is_early: the program logs them before its optimizer steps.
        """
        session = self._session
        if get_ident() == session.thread:  # another thread neither ends nor begins a step
            if is_early and session.row.stepped and not self._step.is_scaled:
                self._close()
            session.working = session.working or is_early
        step = self._step if session.working else self._buffer.last()
        if step is None:
            return False
        step.logged = {**step.logged, **numbers} if step.logged else numbers
        return True

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not patch.inside_backward():
            root = patch.outputs(args, kwargs)
            self._differentiates(root, self._at_backward, args, kwargs)

    def _first_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Leaves the fast path at the first backward() of a program whose losses torch.autograd.grad() received."""
        if not patch.inside_backward():
            self._replay(self._at_backward, args, kwargs)

    def _grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        root = None if patch.inside_backward() else returned_losses.loss_of(args, kwargs, self._session.watched)
        if root is not None:
            self._differentiates(root, self._at_grad, args, kwargs)

    def _differentiates(self, root: Any, hook_point: HookPoint, *call: Any) -> None:
        """Records the loss of a backward pass.

        Args:
            hook_point: where the full callbacks receive this call.
            call: its args and kwargs.
        """
        if self._session.row.stepped and not self._continues():
            self._replay(hook_point, *call)
            return
        step, self._session.working = self._step, True
        loss = async_copy.known(root)
        if loss is None or loss - loss != 0 or self._jumps(loss):
            step.passes = step.backwards + 1
            self._fault(loss, hook_point, *call)
            return
        self._record(root, loss)

    def _scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not args[0].is_enabled():
            return
        continues = not self._session.row.stepped or self._continues()
        step, self._session.working = self._step, True
        root = args[1] if len(args) > 1 else kwargs.get("outputs")
        loss = async_copy.known(root)
        is_usual = continues and args[0] is self._scaler()
        if not is_usual or loss is None or loss - loss != 0 or self._jumps(loss):
            step.passes = step.backwards + 1
            self._fault(loss, patch.hook_point(type(args[0]), "scale"), args, kwargs)
            return
        if step.is_scaled and _stage(args[0], self._optimizer()) is not OptState.READY:
            self._replay(patch.hook_point(type(args[0]), "scale"), args, kwargs)
            return
        self._record(root, loss)
        step.is_scaled = True

    def _record(self, root: Any, loss: float) -> None:
        step = self._step
        caught = BackwardLoss((async_copy.number(loss),), summands(root), call_site.place())
        step.losses.append(caught)
        step.backwards += 1
        self._session.losses.passes += 1
        if not loss:
            self._fast_path.sees_zero_loss(root, caught)

    def _clip(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        norm = async_copy.known(args[2] if len(args) > 2 else kwargs.get("total_norm")) if CLIP_REPORTS_NORM else 0.0
        is_still_scaled = self._step.is_scaled and _stage(self._scaler(), self._optimizer()) is OptState.READY
        if norm is None or norm - norm != 0 or is_still_scaled:
            self._fault(norm, self._at_clip, args, kwargs)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Handles step() from any thread, because another one may become the training thread."""
        session = self._session
        is_other = optimizer is not self._optimizer() and optimizer not in session.watched.optimizers
        if is_other and not session.newcomers.awaits(optimizer):
            return
        if closure_in(args, kwargs) is not None:  # a closure may call anything
            self._fast_path.disable()
        elif get_ident() == session.thread and optimizer is self._optimizer():
            if not session.row.stepped or self._continues():
                session.row.stepped, session.working = self._ids, True
                return
        elif not session.trains_here():
            return
        self._replay(self._at_step, optimizer, args, kwargs)

    def _update(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler, step = args[0], self._step
        if not scaler.is_enabled():
            return
        if step.is_scaled and self._session.row.stepped and scaler is self._scaler():
            states = list(scaler._per_optimizer_states.values())
            founds = list(states[0]["found_inf_per_device"].values()) if len(states) == 1 else []
            if len(founds) == 1 and async_copy.known(founds[0]) == 0.0:
                step.scale = async_copy.known(scaler._scale)
                step.growth_tracker = async_copy.known(scaler._growth_tracker)
                return
        self._skipped(scaler)
        self._replay(patch.hook_point(type(scaler), "update"), args, kwargs)

    def _updated(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        if self._step.scale is not None and args[0] is self._scaler():
            self._step.scale_after = async_copy.known(args[0]._scale)
            if self._step.scale_after != self._step.scale:
                self._session.governor.norm_schedule.scale_changed(self._session.row.step + 1)
            self._close()

    def _skipped(self, scaler: Any) -> None:
        """Records the skip as the full callbacks around step() do, and notifies the probes."""
        session, optimizer = self._session, self._optimizer()
        self._fast_path.leave(is_odd=True)
        if _stage(scaler, optimizer) is OptState.STEPPED:
            session.row.scaler_used = self._ids
            if getattr(optimizer, "_step_supports_amp_scaling", False):
                session.row.fused = self._ids
            if not session.row.stepped:
                session.row.skipped = self._ids
            with torch._C.DisableTorchFunction():
                if session.row.skipped or session.watched.overflowed(optimizer):
                    session.skipped(optimizer)

    def _jumps(self, loss: float) -> bool:
        """Whether the norms of this step are read because its loss is far from the earlier ones.

        The full callbacks then receive the same loss.
        """
        session = self._session
        return session.loss_level.jumps(loss) and session.governor.norm_schedule.loss_jumped(session.row.step)

    def _continues(self) -> bool:
        """Handles a call after the optimizer's step, which begins a new step.

        Returns:
            Whether the fast path continues. It does not in a step with a scaler, in which update() should have come
                first.
        """
        if self._step.is_scaled:
            self._fast_path.leave(is_odd=True)
            self._fast_path.avoid()  # also for the step that begins with this call
        else:
            self._close()
        return self._fast_path.active

    def _close(self) -> None:
        session, step, now = self._session, self._step, perf_counter()
        step.seconds, self._previous = now - self._previous, now
        step.overhead = session.take_overhead()
        row = session.row
        if row.events or row.transfers or row.raw or row.scalars:
            step.row = row
            session.row = Row(row.step + 1)
        else:
            row.step += 1
            row.stepped, row.began = _NO_IDS, now
        self._step, session.working = FastStep(), False
        self._buffer.add(step, now)

    def _fault(self, number: float | None, hook_point: HookPoint, *args: Any) -> None:
        """Leaves the fast path; disables it if the number is not on the host."""
        if number is None:
            self._fast_path.disable()
        self._replay(hook_point, *args)

    def _replay(self, hook_point: HookPoint, *args: Any) -> None:
        """Leaves the fast path and repeats the callbacks before this call with the full set."""
        self._fast_path.leave(is_odd=True)
        self._session.replay_call(hook_point.calls[0], *args)


def _none() -> None:
    return None


def _stage(scaler: Any, optimizer: Any) -> OptState:
    """Returns the scaler's state for this optimizer in this step."""
    state = getattr(scaler, "_per_optimizer_states", _NO_STATES).get(id(optimizer))
    return OptState.READY if state is None else state["stage"]


_NO_IDS: frozenset[int] = frozenset()
_NO_STATES: dict[int, Any] = {}
