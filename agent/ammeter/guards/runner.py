"""Calls guards at step boundaries and provides their shared state, events and termination."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import get_ident
from time import time_ns
from typing import TYPE_CHECKING, Any

import torch

from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import optimizer_steps, patch
from ammeter.torch_hooks.compiled_code import uncompiled
from ammeter.torch_hooks.targets import optimizer_in
from ammeter.wire.frames import Event, Frame

if TYPE_CHECKING:
    from ammeter.guards.buffered_journal import BufferedJournal
    from ammeter.recording.session import Session

MAX_UNINVERTIBLE_SCALE = 2.0**-128
"""At this scale or less the inverse is infinite in float32; see verdicts/loss_scale/scale_underflowed.py."""


@dataclass(frozen=True)
class Update:
    """One update() of a scaler.

    Attributes:
        before: the scale before it, None if only the device knows it.
        after: the scale after it, None if only the device knows it.
        overflow: whether the step was skipped.
        bad_loss: whether the loss was not finite, as far as the host knows.
        given: whether the program set the scale with update(new_scale).
    """

    scaler: torch.amp.GradScaler
    before: float | None
    after: float | None
    overflow: bool
    bad_loss: bool
    given: bool


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint.

    Attributes:
        step: the step open when it was written, so its weights are those after step - 1.
        missing: parts of the training state that it lacks.
        by_guard: whether a guard wrote it, after a check that all of it is finite.
        verified: whether another process read it back and found it valid.
        broken: whether another process read it back and found it invalid.
    """

    path: str
    step: int
    missing: tuple[str, ...]
    by_guard: bool = False
    verified: bool = False
    broken: bool = False


class GuardRunner:
    """Runs the guards of one session.

    A guard implements any of before_scale, before_unscale, after_update, step_closed, before_forward, receive_frames
    and remove. They are called in the training thread, and a guard that raises is switched off by the session's fault
    handling.
    """

    def __init__(
        self, session: Session, journal: BufferedJournal, guards: Sequence[Any], close_journal: Callable[[str], Any]
    ) -> None:
        """Creates a runner.

        Args:
            close_journal: writes the final record with a message, and delivers the written records.
        """
        self.session = session
        self.saved: list[SavedCheckpoint] = []
        self._journal = journal
        self._guards = guards
        self._close_journal = close_journal
        self._stopped: Exception | None = None
        self._step = session.row.step
        self._scale_before: float | None = None
        self._skipped = self._bad_loss = False

    def attach(self) -> list[Any]:
        """Attaches after everything else, so that guards run when the session has closed its step."""
        for guard in self._guards:
            self._safe(guard, "attach")(self)
        self._before_scales = self._methods("before_scale")
        self._before_unscales = self._methods("before_unscale")
        self._after_updates = self._methods("after_update")
        self._step_closed = self._methods("step_closed")
        self._before_forwards = self._methods("before_forward")
        self._receive_frames = self._methods("receive_frames")
        guard = self.session.guard("guards", any_thread=False)
        self._call_guards_safely = guard(self._call_guards)
        watched, at_boundary = self.session.watched, uncompiled(self._at_boundary)
        kinds = watched.scaler_kinds
        handles = [
            *patch.methods(kinds, "update", before=guard(self._before_update), after=guard(self._after_update)),
            *patch.methods(kinds, "update", after=at_boundary),
            optimizer_steps.after(guard(self._after_step)),
            self.session.forward.subscribe(trains=uncompiled(self._before_forward), evaluates=at_boundary),
            patch.backward(before=at_boundary),
            optimizer_steps.before(at_boundary),
            *patch.methods(watched.optimizer_kinds, "zero_grad", before=at_boundary),
        ]
        if self._before_scales:
            handles += patch.methods(kinds, "scale", before=guard(self._before_scale))
        if self._before_unscales:
            handles += patch.methods(kinds, "unscale_", before=guard(self._before_unscale))
        return [*handles, self]

    def remove(self) -> None:
        """Removes everything that guards installed on objects of the program."""
        for guard in self._guards:
            if hasattr(guard, "remove"):
                with suppress(Exception):  # guards that failed also undo their changes
                    guard.remove()

    def finish(self) -> None:
        """Passes the last frames to the guards. They can no longer stop the run."""
        frames = self._journal.take_frames()
        for guard in self._guards:
            if hasattr(guard, "receive_frames") and _fault_name(guard) not in self.session.faults:
                try:
                    guard.receive_frames(frames, last=True)
                except Exception as error:  # noqa: BLE001 - like session.guard, which is inactive by now
                    self.session.record_fault(_fault_name(guard), error)

    @property
    def step(self) -> int:
        """The last closed step."""
        return self.session.row.step - 1

    @property
    def alone(self) -> bool:
        """Whether this is the only rank. Values sampled by time differ between ranks."""
        return self.session.hello.world_size == 1

    def is_off(self, guard: Any) -> bool:
        return self.session.off or _fault_name(guard) in self.session.faults

    def emit(self, guard: Any, action: str, reason: str, **data: Any) -> None:
        """Records the action of a guard at once, because the run may end after it."""
        data = {"guard": guard.name, "action": action, "reason": reason, "step": self.step, **data}
        self.session.journal.append(Event("guard.acted", max(0, self.step), time_ns(), data))

    def stop_run(self, error: Exception) -> None:
        """Stops the run with this error after all guards have been called."""
        self._stopped = self._stopped or error

    def newest_checkpoint_before(self, step: int, *, finite: bool = False) -> SavedCheckpoint | None:
        """Returns the newest complete checkpoint from before this step that was not found broken.

        If some were read back, only these and the guards' own count.

        Args:
            finite: a checkpoint known to be finite may be newer than the step.
        """
        usable = [
            checkpoint
            for checkpoint in self.saved
            if not checkpoint.missing
            and not checkpoint.broken
            and ((finite and checkpoint.by_guard) or checkpoint.step < step)
        ]
        if any(checkpoint.verified for checkpoint in usable):
            usable = [checkpoint for checkpoint in usable if checkpoint.verified or checkpoint.by_guard]
        return max(usable, key=lambda checkpoint: (checkpoint.step, checkpoint.by_guard), default=None)

    def verified(self, path: str, step: int, outcome: str) -> None:
        """Stores the result of reading a checkpoint back, unless it was overwritten meanwhile."""
        passed, failed = outcome == "passed", outcome == "failed"
        for at, checkpoint in enumerate(self.saved):
            if (checkpoint.path, checkpoint.step) == (path, step):
                self.saved[at] = replace(checkpoint, verified=passed, broken=failed)

    def _methods(self, name: str) -> list[Callable[..., None]]:
        return [self._safe(guard, name) for guard in self._guards if hasattr(guard, name)]

    def _safe(self, guard: Any, name: str) -> Callable[..., None]:
        """Returns a guard's method that never raises and does nothing once the guard is off."""
        return self.session.guard(_fault_name(guard), any_thread=False)(getattr(guard, name))

    def _before_scale(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if self._is_watched(args[0]):
            for before_scale in self._before_scales:
                before_scale(args[0])

    def _before_unscale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_watched(args[0]):
            for before_unscale in self._before_unscales:
                before_unscale(args[0], optimizer_in(args, kwargs))

    def _before_update(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Runs twice if update() ends the fast path; the session knows more of the step the second time."""
        if self._is_watched(args[0]):
            self._scale_before = known_scale(args[0])
            self._skipped = bool(self.session.row.skipped)
            if self._scale_before is not None and self._scale_before <= MAX_UNINVERTIBLE_SCALE:
                self.session.row.urgent = True
            self._bad_loss = self._mark_urgent()

    def _after_update(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        scaler = args[0]
        if not self._is_watched(scaler):
            return
        before, after = self._scale_before, known_scale(scaler)
        given = len(args) > 1 or kwargs.get("new_scale") is not None
        overflow = self._skipped if before is None or after is None else not given and after < before
        update = Update(scaler, before, after, overflow, self._bad_loss, given)
        for after_update in self._after_updates:
            after_update(update)

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer in self.session.watched.optimizers:
            self._mark_urgent()

    def _mark_urgent(self) -> bool:
        """Makes a row with a non-finite loss urgent, so that guards can act on it.

        An urgent row is written when its step closes.
        """
        row = self.session.row
        losses = row.transfers.get("loss", ())
        bad = any(loss.on_host and not math.isfinite(loss.number()) for loss in losses)
        row.urgent = row.urgent or bad
        return bad

    def _at_boundary(self, *_: Any) -> None:
        """Runs before calls that may begin or end a step.

        For other calls it only compares a few values. No caller catches exceptions here, so the error that ends the run
        reaches the program.
        """
        if get_ident() != self.session.thread or self.session.off:
            return
        if self._journal.has_frames or self._step != self.session.row.step:
            self._call_guards_safely()
        if self._stopped is not None:
            error, self._stopped = self._stopped, None
            self._close_journal(f"{type(error).__name__}: {error}")
            raise error

    def _before_forward(self, *_: Any) -> None:
        """Handles the start of a training forward pass: work between the two steps is done."""
        self._at_boundary()
        for before_forward in self._before_forwards:
            before_forward()

    def _call_guards(self) -> None:
        if self._journal.has_frames:
            frames = self._journal.take_frames()
            self._store_checkpoints(frames)
            for receive_frames in self._receive_frames:
                receive_frames(frames)
        if self._step != self.session.row.step:
            self._step = self.session.row.step
            for step_closed in self._step_closed:
                step_closed()

    def _store_checkpoints(self, frames: Sequence[Frame]) -> None:
        """Keeps the checkpoints that the program writes. Overwritten ones are dropped."""
        for frame in frames:
            if isinstance(frame, Event) and frame.name == "checkpoint.saved" and frame.data.get("path"):
                saved = SavedCheckpoint(frame.data["path"], frame.step, tuple(frame.data.get("missing") or ()))
                self.saved = [other for other in self.saved if other.path != saved.path or other.by_guard]
                self.saved.append(saved)

    def _is_watched(self, scaler: Any) -> bool:
        return scaler in self.session.watched.scalers and scaler.is_enabled()


def known_scale(scaler: torch.amp.GradScaler) -> float | None:
    """Returns the scale if it is on the host and exists."""
    return None if scaler._scale is None else known(scaler._scale)


def known(number: torch.Tensor) -> float | None:
    """Returns a number that is on the host, None if only the device knows it."""
    return unseen(lambda: async_copy.known(number), (number,))


def _fault_name(guard: Any) -> str:
    return f"{guard.name}-guard"
