"""Reports mistakes in the gradients of one optimizer when they are about to be used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.ledger import Ledger, OptimizerGradients
from ammeter.probes.call_order.usage_events import UsageEvents, is_check_due, name_of, scale_of
from ammeter.recording.loss_shares import own_scale
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site, loss_graph, optimizer_steps
from ammeter.torch_hooks.gradients import gradient

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MAX_READ_GRADIENTS = 4
MAX_READ_ELEMENTS = 1024
"""Sampled gradients, and elements of each, that are read to check for a reset.

A reset through .data.zero_() does not change the version of a gradient. A small sample keeps this reading cheap.
"""


MAX_SAMPLED_ELEMENTS = 16
MAX_SAMPLES = 64
"""Elements of each sampled gradient that are compared before a step past the scaler, and number of such samples."""

MIN_SCALE = 256.0
MAX_CHANGE = 16.0
"""Gradients whose typical element a program has changed by no more than this factor are not divided by such a scale."""

UNIFORM_SHARE = 0.9
KEPT_SHARE = 0.25
"""Shares of the elements. A division, a clip or a normalization changes all of them by one factor."""


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
        self._candidates: set[int] = set()
        """ids of the accounts whose optimizer has stepped past the scaler on changed gradients."""
        self._samples = 0

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

    def added_to_unscaled(self, account: OptimizerGradients) -> None:
        """Reports scaled gradients that were added to unscaled ones of the same optimizer."""
        scaler = account.scaler()
        states = getattr(scaler, "_per_optimizer_states", {})
        if states.get(id(account.optimizer()), {}).get("stage") is OptState.UNSCALED:
            self._events.emit_once(
                "usage.mixed_scale",
                after="unscale_",
                optimizer=name_of(account.optimizer()),
                scale=scale_of(scaler),
                first_step=self._session.row.step,
            )

    def step_without_scaler(self, account: OptimizerGradients) -> None:
        """Judges a step without a scaler, on gradients as backward() left them."""
        optimizer = name_of(account.optimizer())
        if account.marks:
            scaler, is_replayed = self._scaler_of(account), optimizer_steps.is_replayed()
            if not unscales(scaler, account.optimizer()) and not (is_replayed and _has_no_moments(account)):
                data: dict[str, Any] = {"by_state": True} if is_replayed else {}
                data |= {"optimizer": optimizer, "scale": scale_of(scaler)}
                self._events.emit_once("usage.gradients_not_unscaled", **data)
        elif account.float16_line and not self._has_own_scale():
            device = next((parameter.device.type for parameter in account.parameters()), "")
            context: dict[str, Any] = {"device": device, "autocast": bool(device) and torch.is_autocast_enabled(device)}
            event = "usage.fp16_without_scaler"
            self._events.emit_once(event, line=account.float16_line, optimizer=optimizer, **context)

    def note_past_scaler(self, account: OptimizerGradients) -> None:
        """Notes a step without a scaler on changed gradients: the program may have unscaled them itself."""
        scaler = self._scaler_of(account)
        name = name_of(account.optimizer())
        self._past = PastScaler(self._session.row.step, name, scaler, call_site.place())
        self._candidates.add(id(account))
        received = None if account.produced is None else _sampled(account.parameters())
        if received is not None and scaler is not None and not unscales(scaler, account.optimizer()):
            self._events.emit_once(
                "usage.gradients_not_unscaled",
                confirm=lambda data: data["scale"] >= MIN_SCALE and 1 / MAX_CHANGE <= data["ratio"] <= MAX_CHANGE,
                optimizer=name,
                scale=scale_of(scaler),
                ratio=_change(account.produced, received),
            )

    def sample(self, account: OptimizerGradients) -> None:
        """Samples scaled gradients after backward(), if their optimizer may step past the scaler."""
        if id(account) in self._candidates and self._samples < MAX_SAMPLES:
            self._samples += 1
            account.record(produced=_sampled(account.parameters()))

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
            account.record(leftover=_largest(account.parameters()), added_line=call_site.line())

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
    stage = getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), {}).get("stage")
    return stage is OptState.UNSCALED or getattr(optimizer, "grad_scale", None) is not None


def is_scaled_by_hand(root: torch.Tensor) -> bool:
    """Whether the program itself has multiplied a loss by a loss scale; before backward() frees its graph."""
    return own_scale(loss_graph.summands(root)) > 0


def _has_no_moments(account: OptimizerGradients) -> bool:
    """Whether an optimizer has no state yet.

    If its weights change, it need not be the optimizer that changes them: the program may update them itself, and
    divide each gradient by the scale as it uses it.
    """
    return not any(getattr(account.optimizer(), "state", {}).values())


def _largest(parameters: list[torch.Tensor]) -> Transfer | None:
    """Transfer of the largest absolute value in sampled gradients; NaN counts as infinity."""
    grads = [grad for parameter in parameters[:MAX_READ_GRADIENTS] if (grad := gradient(parameter)) is not None]
    near = [grad for grad in grads if grad.device == grads[0].device]
    return unseen(lambda: async_copy.of(torch.stack(list(map(_largest_element, near))).max()), near) if near else None


def _largest_element(grad: torch.Tensor) -> torch.Tensor:
    return grad.flatten()[:MAX_READ_ELEMENTS].abs().max().float().nan_to_num(nan=math.inf)


def _sampled(parameters: list[torch.Tensor]) -> torch.Tensor | None:
    """The absolute values of a few elements of the gradients on one device."""
    grads = [grad for parameter in parameters[:MAX_READ_GRADIENTS] if (grad := gradient(parameter)) is not None]
    near = [grad for grad in grads if grad.device == grads[0].device]
    if not near:
        return None
    return unseen(lambda: torch.cat([grad.flatten()[:MAX_SAMPLED_ELEMENTS].abs().float() for grad in near]), near)


def _change(produced: torch.Tensor | None, received: torch.Tensor) -> torch.Tensor:
    """The typical ratio of received to produced elements.

    It is NaN for a change that may replace a division by the scale: all elements have one ratio other than 1, or one
    absolute value, as after sign().
    """
    if produced is None or produced.shape != received.shape or produced.device != received.device:
        return torch.full((), math.nan)
    return unseen(lambda: _typical(produced, received), (produced, received))


def _typical(produced: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
    ratios = received / produced
    ratios = torch.where(ratios.isfinite() & (received > 0), ratios, math.nan)
    known = ratios.isfinite().sum()
    middle = ratios.nanmedian()
    size = torch.where(received > 0, received, math.nan).nanmedian()

    def share(numbers: torch.Tensor, number: Any, tolerance: float) -> torch.Tensor:
        is_near: torch.Tensor = (numbers - number).abs() <= tolerance * number
        return is_near.sum() / known

    is_one_factor = share(ratios, middle, 0.01) >= UNIFORM_SHARE
    is_kept = share(ratios, 1.0, 0.001) >= KEPT_SHARE
    is_flat = share(received, size, 0.01) >= UNIFORM_SHARE
    return torch.where((is_one_factor & ~is_kept) | is_flat, math.nan, middle)
