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
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.targets import optimizer_in
from ammeter.wire.frames import Event, Frame

if TYPE_CHECKING:
    from ammeter.guards.journal_follower import Overheard
    from ammeter.recording.session import Session

NO_INVERSE = 2.0**-128
"""At this scale or less the inverse is infinite in float32; see verdicts/loss_scale/scale_underflowed.py."""


@dataclass(frozen=True)
class Update:
    """One update() of a scaler.

    before, after: the scale around it, None if only the device knows it. overflow: whether the step was skipped.
    bad_loss: whether the loss was not finite, as far as the host knows. given: whether the program set the scale with
    update(new_scale).
    """

    scaler: torch.amp.GradScaler
    before: float | None
    after: float | None
    overflow: bool
    bad_loss: bool
    given: bool


@dataclass(frozen=True)
class Saved:
    """A checkpoint.

    step: the step open when it was written, so its weights are those after step - 1. sure: written by a guard, which
    checked that all of it is finite. verified, broken: read back in another process, and valid or invalid.
    """

    path: str
    step: int
    missing: tuple[str, ...]
    sure: bool = False
    verified: bool = False
    broken: bool = False


class GuardRunner:
    """Runs the guards of one session.

    A guard implements any of scaling, unscaling, updated, closed, begun, heard and remove. They are called in the
    training thread, and a guard that raises is switched off by the session's fault handling.
    """

    def __init__(
        self, session: Session, journal: Overheard, guards: Sequence[Any], leave: Callable[[str], Any]
    ) -> None:
        """leave: writes the final record with a message, and delivers the written records."""
        self.session = session
        self.saved: list[Saved] = []
        self._journal = journal
        self._guards = guards
        self._leave = leave
        self._ended: Exception | None = None
        self._step = session.row.step
        self._before: float | None = None
        self._skipped = self._bad_loss = False

    def attach(self) -> list[Any]:
        """Attaches after everything else, so that guards run when the session has closed its step."""
        for guard in self._guards:
            self._safe(guard, "attach")(self)
        self._scalings, self._unscalings, self._updates, self._closings, self._beginnings, self._hearings = (
            [self._safe(guard, name) for guard in self._guards if hasattr(guard, name)]
            for name in ("scaling", "unscaling", "updated", "closed", "begun", "heard")
        )
        guard = self.session.guard("guards", any_thread=False)
        self._act = guard(self._acts)
        watched, between = self.session.watched, patch.uncompiled(self._between)
        kinds = watched.scaler_kinds
        handles = [
            *patch.methods(kinds, "update", before=guard(self._updating), after=guard(self._updated)),
            *patch.methods(kinds, "update", after=between),
            patch.stepped(guard(self._stepped)),
            self.session.forward.subscribe(trains=patch.uncompiled(self._begins), evaluates=between),
            patch.backward(before=between),
            patch.stepping(between),
            *patch.methods(watched.optimizer_kinds, "zero_grad", before=between),
        ]
        if self._scalings:
            handles += patch.methods(kinds, "scale", before=guard(self._scaling))
        if self._unscalings:
            handles += patch.methods(kinds, "unscale_", before=guard(self._unscaling))
        return [*handles, self]

    def remove(self) -> None:
        """Removes everything that guards installed on objects of the program."""
        for guard in self._guards:
            if hasattr(guard, "remove"):
                with suppress(Exception):  # guards that failed also undo their changes
                    guard.remove()

    def finish(self) -> None:
        """Passes the last frames to the guards. They can no longer stop the run."""
        frames = self._journal.take()
        for guard in self._guards:
            if hasattr(guard, "heard") and _called(guard) not in self.session.faults:
                try:
                    guard.heard(frames, last=True)
                except Exception as error:  # noqa: BLE001 - like session.guard, which is inactive by now
                    self.session._fault_in(_called(guard), error)

    @property
    def step(self) -> int:
        """The last closed step."""
        return self.session.row.step - 1

    @property
    def alone(self) -> bool:
        """Whether this is the only rank. Values sampled by time differ between ranks."""
        return self.session._hello.world_size == 1

    def is_off(self, guard: Any) -> bool:
        return self.session._off or _called(guard) in self.session.faults

    def tell(self, guard: Any, action: str, reason: str, **data: Any) -> None:
        """Records the action of a guard at once, because the run may end after it."""
        told = {"guard": guard.name, "action": action, "reason": reason, "step": self.step, **data}
        self.session.journal.append(Event("guard.acted", max(0, self.step), time_ns(), told))

    def end(self, stopped: Exception) -> None:
        """Ends the run with this error after all guards have been called."""
        self._ended = self._ended or stopped

    def newest_before(self, step: int, *, finite: bool = False) -> Saved | None:
        """Returns the newest complete checkpoint from before this step that was not found broken.

        If some were read back, only these and the guards' own count. finite: a checkpoint known to be finite may be
        newer than the step.
        """
        usable = [
            checkpoint
            for checkpoint in self.saved
            if not checkpoint.missing
            and not checkpoint.broken
            and ((finite and checkpoint.sure) or checkpoint.step < step)
        ]
        if any(checkpoint.verified for checkpoint in usable):
            usable = [checkpoint for checkpoint in usable if checkpoint.verified or checkpoint.sure]
        return max(usable, key=lambda checkpoint: (checkpoint.step, checkpoint.sure), default=None)

    def verified(self, path: str, step: int, outcome: str) -> None:
        """Stores the result of reading a checkpoint back, unless it was overwritten meanwhile."""
        passed, failed = outcome == "passed", outcome == "failed"
        for at, checkpoint in enumerate(self.saved):
            if (checkpoint.path, checkpoint.step) == (path, step):
                self.saved[at] = replace(checkpoint, verified=passed, broken=failed)

    def _safe(self, guard: Any, name: str) -> Callable[..., None]:
        """Returns a guard's method that never raises and does nothing once the guard is off."""
        return self.session.guard(_called(guard), any_thread=False)(getattr(guard, name))

    def _scaling(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        if self._is_ours(args[0]):
            for scaling in self._scalings:
                scaling(args[0])

    def _unscaling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_ours(args[0]):
            for unscaling in self._unscalings:
                unscaling(args[0], optimizer_in(args, kwargs))

    def _updating(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Runs twice if update() wakes the session.

        The session knows more of the step the second time.
        """
        if self._is_ours(args[0]):
            self._before = known_scale(args[0])
            self._skipped = bool(self.session.row.skipped)
            if self._before is not None and self._before <= NO_INVERSE:
                self.session.row.urgent = True
            self._bad_loss = self._hasten()

    def _updated(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        scaler = args[0]
        if not self._is_ours(scaler):
            return
        before, after = self._before, known_scale(scaler)
        given = len(args) > 1 or kwargs.get("new_scale") is not None
        overflow = self._skipped if before is None or after is None else not given and after < before
        update = Update(scaler, before, after, overflow, self._bad_loss, given)
        for updated in self._updates:
            updated(update)

    def _stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer in self.session.watched.optimizers:
            self._hasten()

    def _hasten(self) -> bool:
        """Makes a row with a non-finite loss urgent, so that guards can act on it.

        An urgent row is written when its step closes.
        """
        row = self.session.row
        bad = any(transfer.here and not math.isfinite(transfer.number()) for transfer in row.transfers.get("loss", ()))
        row.urgent = row.urgent or bad
        return bad

    def _between(self, *_: Any) -> None:
        """Runs before calls that may begin or end a step.

        For other calls it only compares a few values. No caller catches exceptions here, so the error that ends the run
        reaches the program.
        """
        if get_ident() != self.session.thread or self.session._off:
            return
        if self._journal.waiting or self._step != self.session.row.step:
            self._act()
        if self._ended is not None:
            stopped, self._ended = self._ended, None
            self._leave(f"{type(stopped).__name__}: {stopped}")
            raise stopped

    def _begins(self, *_: Any) -> None:
        """Handles the start of a training forward pass: work between the two steps is done."""
        self._between()
        for begun in self._beginnings:
            begun()

    def _acts(self) -> None:
        if self._journal.waiting:
            frames = self._journal.take()
            self._remember(frames)
            for hear in self._hearings:
                hear(frames)
        if self._step != self.session.row.step:
            self._step = self.session.row.step
            for closed in self._closings:
                closed()

    def _remember(self, frames: Sequence[Frame]) -> None:
        """Keeps the checkpoints that the program writes. Overwritten ones are dropped."""
        for frame in frames:
            if isinstance(frame, Event) and frame.name == "checkpoint.saved" and frame.data.get("path"):
                saved = Saved(frame.data["path"], frame.step, tuple(frame.data.get("missing") or ()))
                self.saved = [other for other in self.saved if other.path != saved.path or other.sure]
                self.saved.append(saved)

    def _is_ours(self, scaler: Any) -> bool:
        return scaler in self.session.watched.scalers and scaler.is_enabled()


def known_scale(scaler: torch.amp.GradScaler) -> float | None:
    """Returns the scale if it is on the host and exists."""
    return None if scaler._scale is None else known(scaler._scale)


def known(number: torch.Tensor) -> float | None:
    """Returns a number that is on the host, None if only the device knows it."""
    return unseen(lambda: async_copy.known(number), (number,))


def _called(guard: Any) -> str:
    return f"{guard.name}-guard"
