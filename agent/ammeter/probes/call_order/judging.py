"""Reports mistakes in the gradients of one optimizer when they are about to be used."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.ledger import Ledger, OptimizerGradients
from ammeter.probes.call_order.telling import Telling, is_due, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks.targets import gradient

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MAX_READ = 4
READ = 1024
"""Sampled gradients, and elements of each, that are read to check for a reset.

A reset through .data.zero_() does not change the version of a gradient. A small sample keeps this reading cheap.
"""


class Judge:
    def __init__(self, session: ProbeContext, telling: Telling, ledger: Ledger) -> None:
        self._session = session
        self._telling = telling
        self._ledger = ledger
        self._checked: dict[int, int] = {}

    def raw(self, account: OptimizerGradients, scaler: Any) -> None:
        """Reports that the scaler unscales gradients of a loss that was not scaled."""
        self._telling.once(
            "usage.loss_not_scaled",
            line=account.raw,
            optimizer=name_of(account.optimizer()),
            scale=scale_of(scaler),
            scaled_too=bool(account.marks),
        )

    def updates(self, account: OptimizerGradients, scaler: Any, present: int) -> None:
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
            self._telling.once("usage.update_between_optimizers", line=account.updated, **data)
        else:
            self._telling.once("usage.mixed_scale", line=account.updated, after="update", **data)

    def stage(self, account: OptimizerGradients) -> None:
        """Reports scaled gradients that were added to unscaled ones of the same optimizer."""
        scaler = account.scaler()
        states = getattr(scaler, "_per_optimizer_states", {})
        if states.get(id(account.optimizer()), {}).get("stage") is OptState.UNSCALED:
            self._telling.once(
                "usage.mixed_scale",
                after="unscale_",
                optimizer=name_of(account.optimizer()),
                scale=scale_of(scaler),
                first_step=self._session.row.step,
            )

    def plain(self, account: OptimizerGradients) -> None:
        """Judges a step without a scaler, on gradients as backward() left them."""
        optimizer = name_of(account.optimizer())
        if account.marks:
            behind = {mark.scaler for mark in account.marks}
            scaler = next((scaler for scaler in self._session.watched.scalers if id(scaler) in behind), None)
            self._telling.once("usage.gradients_not_unscaled", optimizer=optimizer, scale=scale_of(scaler))
        elif account.float16:
            self._telling.once("usage.fp16_without_scaler", line=account.float16, optimizer=optimizer)

    def look_at_what_is_left(self, account: OptimizerGradients) -> None:
        """Reads used gradients that backward() is about to add to.

        This happens the first few times, then at powers of two.
        """
        checked = self._checked[id(account)] = self._checked.get(id(account), 0) + 1
        if is_due(checked):
            account.note(left=_largest(account.parameters()))

    def not_reset(self, account: OptimizerGradients) -> None:
        if account.left is None:
            self._checked.pop(id(account), None)  # not read this time; the next time it is due again
            return
        self._telling.once(
            "usage.gradients_not_reset",
            holds=lambda data: data["left"] > 0,
            optimizer=name_of(account.optimizer()),
            after=account.carried,
            left=account.left,
            scale=scale_of(account.scaler()),
        )

    def _another_stepped(self, account: OptimizerGradients, since: int) -> bool:
        return any(other is not account and other.attempted >= since for other in self._ledger.ours())


def _largest(parameters: list[torch.Tensor]) -> Transfer | None:
    """Transfer of the largest absolute value in sampled gradients; NaN counts as infinity."""
    found = [
        found_gradient for parameter in parameters[:MAX_READ] if (found_gradient := gradient(parameter)) is not None
    ]
    near = [candidate for candidate in found if candidate.device == found[0].device]
    return (
        unseen(lambda: async_copy.of(torch.stack([_part(candidate) for candidate in near]).max()), near)
        if near
        else None
    )


def _part(found: torch.Tensor) -> torch.Tensor:
    return found.flatten()[:READ].abs().max().float().nan_to_num(nan=math.inf)
