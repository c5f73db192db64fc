"""Finds steps on gradients that are older than the last update() of their scaler.

It reads GradScaler's own record of each optimizer at update(), so it works in every step, followed or not. A scale(), a
backward() or a torch.autograd.grad() after the update() makes new gradients and ends the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.usage_events import UsageEvents, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.torch_hooks import call_site, optimizer_steps, patch
from ammeter.torch_hooks.call_site import Spot
from ammeter.torch_hooks.targets import optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


@dataclass(slots=True)
class EarlyUpdate:
    """An update() before the step of some optimizers.

    Attributes:
        scaler: id of the scaler.
        spot: place of the call.
        scale: the scale before it.
        step: step of the run.
        stepped: ids of the optimizers that the scaler had stepped.
        unscaled: ids of the optimizers that it had unscaled and not stepped.
    """

    scaler: int
    spot: Spot | None
    scale: Transfer | None
    step: int
    stepped: set[int]
    unscaled: set[int]


class EarlyUpdates:
    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._early: EarlyUpdate | None = None

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        scalers, renewed, used = self._session.watched.scaler_kinds, guard(self._renewed), guard(self._used)
        return self._session.fast_path.pauses(
            [
                *patch.methods(scalers, "update", before=guard(self._before_update)),
                *patch.methods(scalers, "scale", before=renewed),
                patch.backward(before=renewed),
                patch.function(torch.autograd, "grad", before=renewed),
                *patch.methods(scalers, "unscale_", before=used),
                *patch.methods(scalers, "step", before=used),
                optimizer_steps.before_timed(guard(self._stepping)),
            ]
        )

    def _before_update(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        scaler, early = args[0], self._early
        if not scaler.is_enabled():
            return
        stepped, unscaled = _used_optimizers(scaler)
        if early is not None and early.scaler == id(scaler):
            early.stepped |= stepped
            early.unscaled |= unscaled
        elif unscaled or (stepped and not stepped.issuperset(map(id, self._session.watched.optimizers))):
            scale, step = scale_of(scaler), self._session.row.step
            before = None if scale is None else async_copy.of(scale)
            self._early = EarlyUpdate(id(scaler), call_site.spot(), before, step, stepped, unscaled)

    def _renewed(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        self._early = None

    def _stepping(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        """Judges a step inside a step() of a scaler that was not observed."""
        if self._early is not None:
            for scaler in self._session.watched.scalers:
                if id(optimizer) in scaler._per_optimizer_states:
                    self._used((scaler, optimizer), {})

    def _used(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        early, scaler = self._early, args[0]
        if early is None or early.scaler != id(scaler) or patch.inside_backward():
            return
        optimizer = optimizer_in(args, kwargs)
        if id(optimizer) in early.stepped or optimizer not in self._session.watched.optimizers:
            return
        data: dict[str, Any] = {
            "optimizer": name_of(optimizer),
            "scale": scale_of(scaler),
            "scale_before": early.scale,
            "first_step": early.step,
            "unscaled": id(optimizer) in early.unscaled,
        }
        line = call_site.written(early.spot)
        if early.stepped:
            self._events.emit_once("usage.update_between_optimizers", line=line, **data)
        else:
            self._events.emit_once("usage.mixed_scale", line=line, after="update", **data)


def _used_optimizers(scaler: Any) -> tuple[set[int], set[int]]:
    """Returns the ids of the optimizers that were stepped, and those that were only unscaled, since update()."""
    stepped, unscaled = set(), set()
    for key, state in scaler._per_optimizer_states.items():
        if state["stage"] is OptState.STEPPED:
            stepped.add(key)
        elif state["stage"] is OptState.UNSCALED:
            unscaled.add(key)
    return stepped, unscaled
