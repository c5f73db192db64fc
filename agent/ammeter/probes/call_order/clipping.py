"""Finds calls of torch's clipping functions on gradients that are still scaled.

It covers clips by norm and by value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.gradient_checks import MAX_SAMPLES
from ammeter.probes.call_order.ledger import Ledger, OptimizerGradients
from ammeter.probes.call_order.sampled_elements import clip_factors, keeps_scale, transferred_ratio, without_clips
from ammeter.probes.call_order.usage_events import Check, UsageEvents, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import is_plain
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.clip_calls import (
    CLIP_ENDS,
    CLIP_REPORTS_NORM,
    clip_arguments,
    clip_function,
    older_clip_arguments,
)

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


class Clipping:
    def __init__(self, session: ProbeContext, events: UsageEvents, ledger: Ledger) -> None:
        self._session = session
        self._events = events
        self._ledger = ledger

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        by_value, done, changing = guard(self._by_value), guard(self._clipped), guard(self._changing)
        return [
            *self._session.fast_path.pauses([patch.function(*clip_function(), before=guard(self._by_norm))]),
            *self._session.while_following([patch.function(*function, after=done) for function in CLIP_ENDS]),
            patch.function(torch.nn.utils.clip_grad, "clip_grad_value_", before=changing, after=by_value),
            patch.function(torch.nn.utils, "clip_grad_value_", before=changing, after=by_value),
        ]

    def _by_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._note_edits()
        row, watched = self._session.row, self._session.watched
        if CLIP_REPORTS_NORM:
            row.clip_is_finite = _is_finite(args[2] if len(args) > 2 else kwargs.get("total_norm"))
            parameters, max_norm = clip_arguments(args, kwargs)
            row.clipped = watched.optimizers_of(parameters)
        else:
            gradients, max_norm = older_clip_arguments(args)
            row.clipped = watched.optimizers_of_gradients(gradients)
        if row.clipped:
            row.scalars["clip_max"] = max_norm
            self._report(row.clipped, {"max_norm": max_norm})

    def _clipped(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        self._accept_clip()

    def _by_value(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        """Finds the clipped optimizers by their changed gradients.

        The parameters are often a generator, which the call has consumed.
        """
        clipped = [optimizer for account in self._accept_clip() if (optimizer := account.optimizer())]
        self._report(clipped, {"clip_value": float(args[1] if len(args) > 1 else kwargs["clip_value"])})

    def _changing(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        self._note_edits()

    def _note_edits(self) -> None:
        """Records the changes of scaled gradients by the program before a clip, which may be a division."""
        if not self._session.follows or self._ledger.is_other_thread():
            return
        for account in self._ledger.accept_changes():
            if account.marks:
                account.record(edited=True)
        for account in self._ledger.checkable():
            if account.produced is not None:
                account.record(clipped=without_clips(account.parameters(), account.clips))

    def _accept_clip(self) -> list[OptimizerGradients]:
        """Accepts the changes by torch's clip; returns the accounts whose gradients it has changed."""
        changed = self._ledger.accept_changes()
        for account in changed if self._session.follows else ():
            if account.clipped is not None:
                account.record(clips=clip_factors(account.clipped, account.parameters()))
        return changed

    def _report(self, clipped: list[torch.optim.Optimizer], limit: dict[str, float]) -> None:
        if not self._session.row.raw.get("scaled") or self._events.was_emitted("usage.clip_before_unscale"):
            return
        for optimizer in clipped:
            scale = scale_of(self._session.watched.scaling(optimizer))
            if scale is None:
                continue
            account = next((one for one in self._ledger.accounts if one.optimizer() is optimizer), None)
            if account is not None and not self._can_judge(account):
                continue
            data: dict[str, Any] = {**limit, "scale": scale, "optimizer": name_of(optimizer)}
            confirm = None if account is None else self._comparison(account)
            self._events.emit_once("usage.clip_before_unscale", confirm=confirm, **data)

    def _can_judge(self, account: OptimizerGradients) -> bool:
        """Whether it is known if the gradients have been divided by the scale, by the program or through a wrapper.

        If it may have, elements are sampled in the next steps that are followed.
        """
        if account.unscaled_by_wrapper >= 0:
            return False
        if not self._session.follows:
            return not account.is_sampled
        if account.clipped is not None:
            return True
        account.is_past_scaler = account.is_past_scaler or account.edited
        return not account.edited and not (account.is_sampled and account.samples_taken >= MAX_SAMPLES)

    def _comparison(self, account: OptimizerGradients) -> Check | None:
        """Returns the check that sampled elements are still scaled, None without a sample."""
        if not self._session.follows or account.clipped is None or account.produced is None:
            return None
        found = transferred_ratio(account.produced, account.clipped)
        self._session.row.wait_for(found)
        return lambda data: keeps_scale(found.number(), data["scale"])


def _is_finite(total_norm: Any) -> bool:
    """Whether a clip's total norm is finite; True while the host does not know it."""
    known = async_copy.known(total_norm) if isinstance(total_norm, torch.Tensor) and is_plain(total_norm) else None
    return known is None or math.isfinite(known)
