"""Reports mistakes in the gradients of one optimizer when they are about to be used."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.ledger import Ledger, OptimizerGradients
from ammeter.probes.call_order.sampled_elements import (
    MAX_CHANGE,
    change,
    keeps_scale,
    largest,
    ratio,
    sampled,
    transferred_ratio,
    without_clips,
)
from ammeter.probes.call_order.usage_events import UsageEvents, is_check_due, name_of, scale_of
from ammeter.probes.own_scaling.hand_updates import update_of
from ammeter.recording.loss_shares import own_scale
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site, loss_graph, optimizer_steps

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MAX_SAMPLES = 64
"""Samples of one optimizer's gradients that are compared with those that it receives."""

MIN_SCALE = 256.0
"""Smaller scales are within the changes of gradients that have other reasons."""


class PastScaler(NamedTuple):
    """A step without the scaler on gradients of a scaled loss, which the program had changed after backward().

    Attributes:
        step: step of the run.
        optimizer: class of the optimizer.
        scaler: the scaler of the loss, None if it is not watched.
    """

    step: int
    optimizer: str
    scaler: Any
    place: call_site.Place


class GradientChecks:
    def __init__(self, session: ProbeContext, events: UsageEvents, ledger: Ledger) -> None:
        self._session = session
        self._events = events
        self._ledger = ledger
        self._checked: dict[int, int] = {}
        self._past: PastScaler | None = None

    def loss_not_scaled(self, account: OptimizerGradients, scaler: Any) -> None:
        """Reports that the scaler unscales gradients of a loss that neither it nor the program has scaled."""
        if self._has_own_scale():
            return
        self._events.emit_once(
            "usage.loss_not_scaled",
            line=account.unscaled_line,
            optimizer=name_of(account.optimizer()),
            scale=scale_of(scaler),
            scaled_too=bool(account.marks),
        )

    def update_before_use(self, account: OptimizerGradients, scaler: Any, present: int) -> None:
        """Reports an update() between backward() and now.

        The scale may have changed, and the gradients did not.

        Args:
            present: number of the scaler's updates until now.
        """
        own = [mark for mark in account.marks if mark.scaler == id(scaler)]
        counts = {mark.updates for mark in own}
        if not counts or counts == {present}:
            return
        first = min(mark.step for mark in own)
        data: dict[str, Any] = {
            "optimizer": name_of(account.optimizer()),
            "scale": scale_of(scaler),
            "scale_before": account.scale,
            "first_step": first,
        }
        if len(counts) == 1 and self._another_stepped(account, first):
            self._events.emit_once("usage.update_between_optimizers", line=account.update_line, **data)
        else:
            self._events.emit_once("usage.mixed_scale", line=account.update_line, after="update", **data)

    def read_unscaled(self, account: OptimizerGradients) -> None:
        """Reads unscaled gradients that backward() is about to add to: zero_grad() may have zeroed them."""
        if is_unscaled(account.scaler(), account.optimizer()) and not self._events.was_emitted("usage.mixed_scale"):
            account.record(leftover=largest(account.parameters()))

    def added_to_unscaled(self, account: OptimizerGradients) -> None:
        """Reports scaled gradients that were added to unscaled ones of the same optimizer."""
        scaler, left = account.scaler(), account.leftover
        if left is None or not is_unscaled(scaler, account.optimizer()):
            return
        is_known = left.ready()  # a second unscale_() may end the program before the step is finished
        if not is_known or left.number() > 0:
            self._events.emit_once(
                "usage.mixed_scale",
                confirm=None if is_known else lambda data: data["left"] > 0,
                after="unscale_",
                optimizer=name_of(account.optimizer()),
                scale=scale_of(scaler),
                left=left,
                first_step=self._session.row.step,
            )

    def unscaled_by_wrapper(self, account: OptimizerGradients | None, scaler: Any) -> None:
        """Reports gradients that scaler.step() divides again, because another object was unscaled."""
        if account is None or account.unscaled_by_wrapper != self._session.row.step:
            return
        optimizer = account.optimizer()
        if not is_unscaled(scaler, optimizer):
            data: dict[str, Any] = {"optimizer": name_of(optimizer), "scale": scale_of(scaler)}
            self._events.emit_once("usage.mixed_scale", after="unscale_ of a wrapper", **data)

    def step_without_scaler(self, account: OptimizerGradients) -> None:
        """Judges a step without a scaler, on gradients as backward() left them."""
        optimizer = name_of(account.optimizer())
        if account.marks:
            self._not_unscaled(account)
        elif account.float16_line and not self._has_own_scale():
            device = next((parameter.device.type for parameter in account.parameters()), "")
            context: dict[str, Any] = {"device": device, "autocast": bool(device) and torch.is_autocast_enabled(device)}
            event = "usage.fp16_without_scaler"
            self._events.emit_once(event, line=account.float16_line, optimizer=optimizer, **context)

    def _not_unscaled(self, account: OptimizerGradients) -> None:
        """Reports a step on scaled gradients, unless a few elements show that the program has divided them.

        A division through .data changes no version.
        """
        scaler, optimizer = self._scaler_of(account), account.optimizer()
        if unscales(scaler, optimizer):
            return
        if optimizer_steps.may_be_by_hand(optimizer):
            self._not_unscaled_by_hand(account, scaler)
            return
        event, confirm = "usage.gradients_not_unscaled", None
        if self._events.was_emitted(event):
            return
        if account.produced is not None and (received := _received(account)) is not None:
            found = transferred_ratio(account.produced, received)
            self._session.row.wait_for(found)
            confirm = partial(_keeps_scale, found)
        elif account.is_sampled and account.samples_taken >= MAX_SAMPLES:
            return
        data: dict[str, Any] = {"by_state": True} if optimizer_steps.is_replayed() else {}
        data |= {"optimizer": name_of(optimizer), "scale": scale_of(scaler)}
        self._events.emit_once(event, confirm=confirm, **data)

    def _not_unscaled_by_hand(self, account: OptimizerGradients, scaler: Any) -> None:
        """Reports an update by the program itself that multiplies scaled gradients by the optimizer's learning rate."""
        update = update_of(self._session.row, account.optimizer())
        if update is None or account.clips is not None:
            return
        self._events.emit_once(
            "usage.gradients_not_unscaled",
            confirm=lambda data: bool(data["scale"] and data["scale"] >= MIN_SCALE and update.is_at_rate()),
            optimizer=name_of(account.optimizer()),
            backward=call_site.line_at(update.was.place),
            scale=scale_of(scaler),
            by_hand=True,
            factor=update.rate,
        )

    def note_past_scaler(self, account: OptimizerGradients) -> None:
        """Notes a step without a scaler on changed gradients: the program may have unscaled them itself.

        Beside a clip by torch, a change by one factor may be an average, but hardly a clip of the program's own.
        """
        scaler = self._scaler_of(account)
        name = name_of(account.optimizer())
        self._past = PastScaler(self._session.row.step, name, scaler, call_site.place())
        produced, received = account.produced, _received(account) if account.is_past_scaler else None
        account.is_past_scaler = True
        if produced is None or received is None:
            return
        if scaler is not None and not unscales(scaler, account.optimizer()):
            compare = change if account.clips is None else ratio
            self._events.emit_once(
                "usage.gradients_not_unscaled",
                confirm=lambda data: data["scale"] >= MIN_SCALE and 1 / MAX_CHANGE <= data["ratio"] <= MAX_CHANGE,
                optimizer=name,
                scale=scale_of(scaler),
                ratio=compare(produced, received),
            )

    def sample(self, account: OptimizerGradients) -> None:
        """Samples scaled gradients after backward(), if their optimizer may step past the scaler."""
        if account.is_sampled and account.samples_taken < MAX_SAMPLES:
            account.samples_taken += 1
            account.record(produced=sampled(account.parameters()), clipped=None, clips=None)
        elif account.produced is not None:
            account.record(produced=None, clipped=None, clips=None)

    def stepped_past_scaler(self) -> bool:
        """Reports the noted step, after update() has raised an error because the scaler checked no gradients.

        Returns:
            Whether an optimizer stepped past the scaler.
        """
        past, event = self._past, "usage.gradients_not_unscaled"
        if past is not None and past.step >= self._session.row.step - 1:
            line = call_site.line_at(past.place)
            self._events.emit_once(event, line=line, optimizer=past.optimizer, scale=scale_of(past.scaler), raises=True)
        return self._events.was_emitted(event)

    def _scaler_of(self, account: OptimizerGradients) -> Any:
        """Returns the watched scaler that the gradients are multiplied by, None for another one."""
        marked = {mark.scaler for mark in account.marks}
        return next((scaler for scaler in self._session.watched.scalers if id(scaler) in marked), None)

    def _has_own_scale(self) -> bool:
        """Whether the program has scaled its loss itself."""
        losses = self._session.row.raw.get("losses", ())
        return self._session.own_scale.value > 0 or any(own_scale(loss.parts) for loss in losses)

    def check_leftover(self, account: OptimizerGradients) -> None:
        """Reads used gradients that backward() is about to add to.

        This happens the first few times, then at powers of two.
        """
        checked = self._checked[id(account)] = self._checked.get(id(account), 0) + 1
        if is_check_due(checked):
            account.record(leftover=largest(account.parameters()), added_line=call_site.line())

    def not_reset(self, account: OptimizerGradients) -> None:
        if account.leftover is None:
            self._checked.pop(id(account), None)  # not read: the next check is due again
            return
        more: dict[str, Any] = {}
        if self._session.closure.optimizer == id(account.optimizer()):
            more["closure"] = True
        self._events.emit_once(
            "usage.gradients_not_reset",
            confirm=lambda data: data["left"] > 0,
            optimizer=name_of(account.optimizer()),
            after=account.outcome,
            left=account.leftover,
            backward=account.added_line,
            scale=scale_of(account.scaler()),
            **more,
        )

    def _another_stepped(self, account: OptimizerGradients, since: int) -> bool:
        return any(other is not account and other.attempted >= since for other in self._ledger.checkable())


def unscales(scaler: Any, optimizer: Any) -> bool:
    """Whether a scaler has unscaled the gradients of this step, or the optimizer does it with the scaler's scale.

    A step() of the scaler that was not observed, as through a bound method from before watch(), shows only there.
    """
    return is_unscaled(scaler, optimizer) or getattr(optimizer, "grad_scale", None) is not None


def is_unscaled(scaler: Any, optimizer: Any) -> bool:
    """Whether a scaler's own record has the optimizer as unscaled and not stepped since update()."""
    stage = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {}).get("stage")
    return stage is OptState.UNSCALED


def is_scaled_by_hand(root: torch.Tensor) -> bool:
    """Whether the program itself has multiplied a loss by a loss scale; before backward() frees its graph."""
    return own_scale(loss_graph.summands(root)) > 0


def _received(account: OptimizerGradients) -> torch.Tensor | None:
    """The sampled elements without torch's clips; None if there is nothing to compare them with."""
    return None if account.produced is None else without_clips(account.parameters(), account.clips)


def _keeps_scale(found: Transfer, data: dict[str, Any]) -> bool:
    return keeps_scale(found.number(), data["scale"])
