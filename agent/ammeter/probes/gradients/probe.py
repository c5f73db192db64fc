"""Reads the gradients of each optimizer once per step, before a scaler unscales them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ammeter.probes.gradients.asked import AllTensors
from ammeter.probes.gradients.columns import FLOAT32_MAX, fill
from ammeter.probes.gradients.events import MAX_COUNTED_STEPS, NonfiniteEvents, emit_spectrum
from ammeter.probes.gradients.exponents import ExponentReader, ExponentReading, emit
from ammeter.probes.gradients.reading import GradientReader, GradientReading, Indices
from ammeter.probes.gradients.unscaled_by_hand import UnscaledByHand
from ammeter.recording.schedule.bucket import clocks, cost_since
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import optimizer_steps, patch
from ammeter.torch_hooks.clip_calls import about_to_change, clip_function, sorting_function
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.gradients import gradients
from ammeter.torch_hooks.targets import optimizer_in

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Gradients:
    name = "gradients"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._nonfinite = NonfiniteEvents(session.watched)
        self._reader = GradientReader(self._may_count, self._takes_spectrum)
        self._exponents = ExponentReader(session.watched)
        self._by_hand = UnscaledByHand(session)
        AllTensors(session).subscribe(self.name)
        self._unknown: set[int] = set()
        """Optimizers that had gradients when watching began, until they receive new ones.

        The probe does not know whether these gradients were clipped or are still scaled.
        """

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = self._session.watched.scaler_kinds
        guard(self._prepare)()
        stepping = guard(self._stepping)
        self._unknown = {id(optimizer) for optimizer in self._session.watched.optimizers if _has_gradients(optimizer)}
        return self._session.fast_path.pauses(
            [
                patch.backward(before=guard(self._backward), after=guard(self._ran_backward)),
                patch.function(torch.autograd, "grad", after=guard(self._by_hand.after_grad)),
                *patch.methods(self._session.watched.optimizer_kinds, "zero_grad", before=guard(self._resetting)),
                *patch.methods(kinds, "unscale_", before=guard(self._unscaling)),
                patch.function(*clip_function(), before=guard(self._clipping)),
                patch.function(*sorting_function(), before=guard(self._changing)),
                optimizer_steps.before_timed(stepping, early=stepping, late=stepping),
                optimizer_steps.after(guard(self._stepped)),
            ]
        )

    def joined(self, optimizer: torch.optim.Optimizer) -> None:
        """Excludes gradients that an optimizer had before it was watched, which may have been clipped."""
        if _has_gradients(optimizer):
            self._unknown.add(id(optimizer))

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Reads the gradients of a skipped step, even without the governor's permission.

        The non-finite numbers are still in the gradients.
        """
        self.read(optimizer, always=True)

    def read(self, optimizer: torch.optim.Optimizer, *, always: bool = False) -> None:
        """Reads the statistics of this optimizer's gradients, once per step.

        A step that is known to be skipped is always read, before a clip turns all its gradients into NaN. Of several
        optimizers in one step all are read or none, because the norm covers all gradients.

        Args:
            always: read even if the governor does not allow a reading.
        """
        row, key, governor = self._session.row, id(optimizer), self._session.governor
        decisions: dict[int, bool] = row.raw.setdefault("gradients_read", {})
        if decisions.get(key):
            return
        permission = row.raw.get("gradients_permission")
        if permission is None:
            permission = row.raw["gradients_permission"] = governor.reads_gradients(row.step)
        full, allowed = permission if key not in decisions else (False, False)
        decisions[key] = always or allowed or (bool(row.scaler_used) and self._session.watched.overflowed(optimizer))
        if not decisions[key]:
            return
        began = clocks()
        indices, grads = self._collect(optimizer)
        if grads:
            scale = self._scale(optimizer)
            unseen(lambda: self._read(row, optimizer, indices, grads, scale, full), grads)
        governor.spend_on_gradients(row.step, cost_since(began), full=full)

    def finish(self, row: Row) -> None:
        readings: list[GradientReading] | None = row.raw.get("gradients")
        if not readings:
            return
        squares, nonfinite, known = 0.0, [], []
        for reading in readings:
            if reading.stopwatch:
                self._session.governor.norms.spend_on_device(reading.stopwatch.seconds())
            norms = fill(row, reading)
            squares += float(norms @ norms)
            known += reading.indices.tolist()
            if not math.isfinite(float(norms.sum())):
                nonfinite += reading.nonfinite().tolist()
        if _is_complete(row) or not squares < math.inf:
            row.scalars["grad_norm"] = min(math.sqrt(squares), FLOAT32_MAX) if squares < math.inf else squares
        emit_spectrum(row, readings)
        self._emit_exponents(row)
        self._nonfinite.emit(row, sorted(nonfinite), sorted(known))
        if nonfinite:
            row.raw["gradients_known"] = nonfinite, known

    def _backward(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        if self._unknown:
            self._unknown.clear()
        self._by_hand.before_backward()

    def _ran_backward(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        self._by_hand.after_backward()

    def _resetting(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Reads gradients that zero_grad() would discard inside step(closure).

        A second evaluation of the closure uses other weights and resets the gradients of the first one.
        """
        self._unknown.discard(id(args[0]))
        closure = self._session.closure
        is_evaluated = closure.optimizer == id(args[0]) and closure.evaluated and not closure.reevaluated
        if is_evaluated and args[0] in self._session.watched.optimizers:
            self.read(args[0])

    def _unscaling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        optimizer = optimizer_in(args, kwargs)
        if optimizer in self._session.watched.optimizers:
            self._exclude_if_unknown(optimizer)
            self._by_hand.leave_to_scaler(optimizer)
            self.read(optimizer)

    def _clipping(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reads the gradients before a clip by norm.

        The usage probe runs earlier and has stored the clipped optimizers in the row.
        """
        row = self._session.row
        if row.clipped:
            for optimizer in row.clipped:
                self._read_before_change(optimizer, always=not row.clip_is_finite)
            row.clipped = ()

    def _changing(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Reads the gradients before a clip by value, or before another clipping function of torch."""
        session = self._session
        decisions = session.row.raw.get("gradients_read", ())
        if not all(id(optimizer) in decisions for optimizer in session.watched.optimizers):
            for optimizer in session.watched.optimizers_of_gradients(about_to_change(args)):
                self._read_before_change(optimizer)

    def _read_before_change(self, optimizer: torch.optim.Optimizer, *, always: bool = False) -> None:
        closure, key = self._session.closure, id(optimizer)
        if closure.optimizer == key and closure.reevaluated:
            return
        watched = self._session.watched
        known = key not in self._unknown and (
            watched.scaled_by_one(optimizer) or not self._session.row.raw.get("scaled")
        )
        if not known and not watched.unscaled(optimizer):
            self._exclude(optimizer)
        else:
            self.read(optimizer, always=always)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer not in self._session.watched.optimizers or closure_in(args, kwargs) is not None:
            return
        self._exclude_if_unknown(optimizer)
        self._by_hand.stepping(optimizer)
        self.read(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Reads the gradients that a closure computed during step(); they still exist after it."""
        if optimizer in self._session.watched.optimizers and closure_in(args, kwargs) is not None:
            if not self._session.closure.untouched():
                self._exclude(optimizer)
            self.read(optimizer)

    def _exclude(self, optimizer: torch.optim.Optimizer) -> None:
        """Prevents later readings of this step, except forced ones and overflows.

        The gradients are no longer as backward() left them, or their state is unknown.
        """
        self._session.row.raw.setdefault("gradients_read", {}).setdefault(id(optimizer), False)

    def _exclude_if_unknown(self, optimizer: torch.optim.Optimizer) -> None:
        """Excludes gradients that are older than the run, which may have been clipped or unscaled before."""
        if id(optimizer) in self._unknown:
            self._unknown.discard(id(optimizer))
            self._exclude(optimizer)

    def _collect(self, optimizer: torch.optim.Optimizer) -> tuple[Indices, list[torch.Tensor]]:
        """Indices and gradients of the parameters that have one.

        Gradients with the layout of the last reading are not examined again.
        """
        parameters, indices = self._session.watched.parameters(optimizer)
        grads = [parameter.grad for parameter in parameters]
        present = [grad for grad in grads if grad is not None]
        if not self._reader.host(optimizer).fits(present):
            grads = gradients(parameters)
            present = [grad for grad in grads if grad is not None]
        if len(present) < len(grads):
            indices = [index for index, grad in zip(indices, grads, strict=True) if grad is not None]
        return np.array(indices, np.int64), present

    def _scale(self, optimizer: torch.optim.Optimizer) -> async_copy.Transfer:
        """The scale that the gradients are multiplied by now, 1 without a scaler."""
        row = self._session.row
        scaled = row.raw.get("scaled") or id(optimizer) in row.scaler_used
        scaler = self._session.watched.scaling(optimizer) if scaled else None
        if scaler is None or scaler._scale is None:
            return async_copy.number(1.0)
        return self._by_hand.left_of(async_copy.of(scaler._scale), optimizer)

    def _read(
        self,
        row: Row,
        optimizer: torch.optim.Optimizer,
        indices: Indices,
        grads: list[torch.Tensor],
        scale: async_copy.Transfer,
        full: bool,
    ) -> None:
        readings = list(self._reader.read(optimizer, indices, grads, scale, full))
        for reading in readings:
            if reading.has_nonfinite:
                row.urgent = True
                self._session.own_scale.overflowed(optimizer)
            row.raw.setdefault("gradients", []).append(reading)
            for transfer in reading.transfers():
                row.later("gradients", transfer)
        if self._exponents.is_due(optimizer, readings):
            for copied in self._exponents.read(optimizer, dict(zip(indices.tolist(), grads, strict=True)), readings):
                row.raw.setdefault("exponents", []).append(copied)
                row.later("gradients", copied.values)

    def _emit_exponents(self, row: Row) -> None:
        readings: list[ExponentReading] | None = row.raw.get("exponents")
        if readings:
            began = clocks()
            emit(row, readings, self._session.watched.tensors)
            self._session.governor.full.charge(cost_since(began))

    def _may_count(self) -> bool:
        """Whether non-finite elements may be counted: in the first bad steps, then as the governor allows."""
        return self._nonfinite.bad_steps < MAX_COUNTED_STEPS or self._session.governor.full.allows()

    def _takes_spectrum(self, is_nonfinite: bool) -> bool:
        """Whether the spectrum of the open step is due: around a skipped step, or after a change of the scale."""
        is_skipped = is_nonfinite and bool(self._session.row.scaler_used)
        return self._session.governor.norm_schedule.takes_spectrum(self._session.row.step, is_skipped=is_skipped)

    def _prepare(self) -> None:
        for optimizer in self._session.watched.optimizers:
            self._reader.prepare(optimizer, self._session.watched.parameters(optimizer)[0])


def _is_complete(row: Row) -> bool:
    """Whether the gradients of all optimizers that stepped or were skipped have been read."""
    decisions: dict[int, bool] = row.raw.get("gradients_read", {})
    return all(decisions.get(optimizer, True) for optimizer in row.stepped | row.skipped)


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"])
