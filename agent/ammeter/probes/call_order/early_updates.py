"""Finds steps on gradients that are older than the last update() of their scaler, or that it has already used.

It reads GradScaler's own record of each optimizer at update(), and the gradients that a step() of the scaler leaves, so
it works in every step, followed or not. A scale(), a backward() or a torch.autograd.grad() makes new gradients and ends
the search.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.amp.grad_scaler import OptState

from ammeter.probes.call_order.dropped_gradients import parameters_of
from ammeter.probes.call_order.sampled_elements import MAX_READ_GRADIENTS, largest
from ammeter.probes.call_order.usage_events import UsageEvents, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site, optimizer_steps, patch
from ammeter.torch_hooks.call_site import Spot
from ammeter.torch_hooks.targets import optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext


class EarlyUpdate(msgspec.Struct):
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


class Used(msgspec.Struct):
    """Gradients that a step() of a scaler has used.

    Attributes:
        gradients: some of them, and their versions. The program changes neither before it steps again by mistake.
        applied: whether the scaler has called the optimizer's own step().
        scaler: the scaler.
    """

    gradients: list[tuple[weakref.ref[torch.Tensor], int]]
    applied: bool
    scaler: weakref.ref[Any]


class SecondSteps:
    """Reports an optimizer that steps by itself on gradients that scaler.step() has used."""

    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._used: dict[int, Used] = {}
        self._inside = 0
        self._applied = False

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        scalers, renewed = self._session.watched.scaler_kinds, guard(self._renewed)
        step = {"before": guard(self._before_scaler_step), "after": guard(self._after_scaler_step)}
        return self._session.fast_path.pauses(
            [
                *patch.methods(scalers, "scale", before=renewed),
                patch.backward(before=renewed),
                patch.function(torch.autograd, "grad", before=renewed),
                *patch.methods(scalers, "step", **step),
                optimizer_steps.before(guard(self._stepping)),
            ]
        )

    def _renewed(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        if self._used:
            self._used.clear()

    def _before_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = optimizer_in(args, kwargs)
        self._used.pop(id(optimizer), None)
        self._inside, self._applied = id(optimizer), False

    def _after_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        scaler, optimizer, self._inside = args[0], optimizer_in(args, kwargs), 0
        watched = self._session.watched
        if scaler.is_enabled() and optimizer in watched.optimizers and not watched.by_several_threads:
            found = unseen(lambda: [(weakref.ref(grad), grad._version) for grad in _gradients(optimizer)], ())
            self._used[id(optimizer)] = Used(found, self._applied, weakref.ref(scaler))

    def _stepping(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if self._inside:
            self._applied = self._applied or self._inside == id(optimizer)
            return
        used, event = self._used.pop(id(optimizer), None), "usage.gradients_not_unscaled"
        if used is None or self._events.was_emitted(event) or not unseen(lambda: _is_unchanged(optimizer, used), ()):
            return
        parameters = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
        self._events.emit_once(
            event,
            confirm=lambda data: data["left"] > 0,  # a reset through .data changes no version
            optimizer=name_of(optimizer),
            scale=scale_of(used.scaler()),
            again="applied" if used.applied else "skipped",
            left=largest(parameters[:MAX_READ_GRADIENTS]),
        )


def _is_unchanged(optimizer: torch.optim.Optimizer, used: Used) -> bool:
    now = list(_gradients(optimizer))
    pairs = zip(now, used.gradients, strict=False)
    same = all(ref() is gradient and version == gradient._version for gradient, (ref, version) in pairs)
    return bool(now) and len(now) == len(used.gradients) and same


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Some gradients of an optimizer."""
    present = (parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None)
    return (gradient for _, gradient in zip(range(MAX_READ_GRADIENTS), present, strict=False))
