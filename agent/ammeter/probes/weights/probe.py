"""Measures on sampled steps how the optimizers change the weights.

The probe measures the size of updates, lost updates, the agreement of consecutive gradients, and NaN and Inf in
weights, moments and buffers.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ammeter.probes.weights.buffers import Buffers
from ammeter.probes.weights.model_copies import Copies
from ammeter.probes.weights.nonfinite import NonfiniteWeights
from ammeter.probes.weights.replicas import Replicas
from ammeter.probes.weights.undone import UndoneUpdates
from ammeter.probes.weights.updates import Part, Updates
from ammeter.recording.scaler_updates import skipped_in
from ammeter.recording.schedule.bucket import Cost, clocks, cost_since
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import optimizer_steps
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.hook_points import AtEnd

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row


class Weights:
    """Reads pairs of consecutive steps.

    The second reading of a pair knows the gradients of the first. With other distances, the agreement of two gradients
    would depend on the number of steps between them.
    """

    name = "weights"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._bucket = session.governor.weights
        self._updates: weakref.WeakKeyDictionary[torch.optim.Optimizer, Updates] = weakref.WeakKeyDictionary()
        self._second_readings: set[int] = set()
        self._open: dict[int, Cost] = {}
        self._buffers = Buffers(session)
        self._nonfinite = NonfiniteWeights(session, self._buffers)
        self._copies = Copies(session)
        self._replicas = Replicas(session)
        self._undone = UndoneUpdates()
        self._shared_steps = session.governor.shared_steps

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        if self._bucket.share <= 0:
            return []
        guard(self._prepare)()
        guard(self._replicas.attach)()
        return [
            AtEnd(guard(self._nonfinite.at_end)),
            *self._session.fast_path.pauses(
                [
                    optimizer_steps.before_timed(
                        guard(self._stepping), early=guard(self._begin_reading), late=guard(self._compare_if_due)
                    ),
                    optimizer_steps.after(guard(self._stepped)),
                ]
            ),
            *self._copies.attach(guard),
        ]

    def finish(self, row: Row) -> None:
        parts: list[Part] = row.raw.get("weights", _NO_PARTS)
        if parts:
            _fill(row, parts)
            self._undone.finish(row, parts)
        if "copies" in row.raw:
            self._copies.finish(row)
        if "buffers" in row.raw:
            self._buffers.finish(row)
        self._nonfinite.finish(row, parts)
        self._replicas.finish(row)

    def _prepare(self) -> None:
        """Allocates the buffers at watch(), not in the middle of training."""
        for optimizer in self._session.watched.optimizers:
            self._reader(optimizer)

    def _stepping(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if optimizer in self._session.watched.optimizers:
            self._compare_if_due(optimizer, args, kwargs)
            self._begin_reading(optimizer, args, kwargs)

    def _compare_if_due(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if self._shared_steps.is_due(self._session.row.step):
            gradients_exist = closure_in(args, kwargs) is None
            self._read(lambda: self._compare_replicas(optimizer, weights=True, gradients=gradients_exist))

    def _begin_reading(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        gradients_exist = closure_in(args, kwargs) is None
        key, began = id(optimizer), clocks()
        self._open.pop(key, None)
        is_second = key in self._second_readings
        self._second_readings.discard(key)
        allowed = self._bucket.allows() or self._session.governor.asks(self._session.row.step)
        if not (allowed or is_second):
            return
        if allowed:
            self._second_readings.add(key)
            self._session.fast_path.avoid()
        self._read(lambda: self._before(optimizer, is_second, gradients_exist))
        self._open[key] = cost_since(began)

    def _before(self, optimizer: torch.optim.Optimizer, is_second: bool, gradients_exist: bool) -> None:
        """Reads weights and gradients before a step.

        Args:
            is_second: whether the last reading was of the previous step.
            gradients_exist: whether the gradients of this step exist; otherwise a closure computes them.
        """
        self._copies.read(self._session.row)
        self._buffers.sample(self._session.row)
        held = self._nonfinite.held_turn(optimizer)
        self._reader(optimizer).before(optimizer, is_second=is_second, gradients_exist=gradients_exist, held=held)

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        spent = self._open.pop(id(optimizer), None)
        if spent is not None:
            began = clocks()
            self._read(lambda: self._after(optimizer))
            after = cost_since(began)
            in_debt = not self._session.governor.asks(self._session.row.step)
            self._bucket.spend(spent.cpu + after.cpu, spent.wall + after.wall, in_debt=in_debt)
        is_shared = self._session.row.step == self._shared_steps.next and optimizer in self._session.watched.optimizers
        if is_shared and closure_in(args, kwargs) is not None:
            self._read(lambda: self._compare_replicas(optimizer, weights=False, gradients=True))

    def _compare_replicas(self, optimizer: torch.optim.Optimizer, *, weights: bool, gradients: bool) -> None:
        updates = self._reader(optimizer)
        if weights:
            self._replicas.read_weights(optimizer, updates)
        if gradients:
            self._replicas.read_gradients(optimizer, updates)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        row = self._session.row
        for part in self._reader(optimizer).after(optimizer):
            row.raw.setdefault("weights", []).append(part)
            for transfer in part.transfers():
                row.later("weights", transfer)

    def _read(self, read: Callable[[], None]) -> None:
        """Runs a reading without gradients and without the program's torch modes."""
        with torch.no_grad():
            unseen(read, ())

    def _reader(self, optimizer: torch.optim.Optimizer) -> Updates:
        reader = self._updates.get(optimizer)
        if reader is None:
            reader = self._updates[optimizer] = Updates(self._session.watched, optimizer)
        return reader


_NO_PARTS: list[Part] = []


def _fill(row: Row, parts: list[Part]) -> None:
    lost = meant = update = weight = bad = product = gradient = earlier = 0.0
    has_overflowed = False
    for part in parts:
        columns, shares = part.read(), part.shares
        row.fill("weight.norm", part.indices, np.sqrt(columns["norm"]))
        row.fill("weight.nonfinite", part.indices, columns["nonfinite"])
        bad += float(columns["nonfinite"].sum())
        if _was_skipped_on_device(row, part.optimizer):
            continue
        changed = (
            part.has_gradient & (columns["norm_before"] > 0) & np.isfinite(columns["update"] + columns["norm_before"])
        )
        has_overflowed |= bool((part.has_gradient & ~changed & (columns["norm_before"] > 0) & _is_huge(columns)).any())
        row.fill("update.ratio", part.indices[changed], np.sqrt(columns["update"] / columns["norm_before"])[changed])
        update += float((columns["update"] * shares)[changed].sum())
        weight += float((columns["norm_before"] * shares)[changed].sum())
        moving = part.moving() & (columns["meant"] > 0)
        row.fill("update.lost", part.indices[moving], (columns["lost"] / columns["meant"])[moving])
        lost += float((columns["lost"] * shares)[moving].sum())
        meant += float((columns["meant"] * shares)[moving].sum())
        squared_lengths = columns["gradient"] * columns["earlier"]
        finite = np.isfinite(squared_lengths + columns["product"])
        agreeing = part.has_gradient & part.agreeing & finite & (squared_lengths > 0)
        row.fill("grad.agreement", part.indices[agreeing], (columns["product"] / np.sqrt(squared_lengths))[agreeing])
        product += float((columns["product"] * shares)[agreeing].sum())
        gradient += float((columns["gradient"] * shares)[agreeing].sum())
        earlier += float((columns["earlier"] * shares)[agreeing].sum())
    row.scalars["weights_nonfinite"] = bad
    if weight and not has_overflowed:
        row.scalars["update_ratio"] = math.sqrt(update / weight)
    if meant:
        row.scalars["lost_updates"] = lost / meant
    if gradient * earlier:
        row.scalars["grad_agreement"] = product / math.sqrt(gradient * earlier)


def _is_huge(columns: dict[str, Any]) -> Any:
    """Which weights changed in a way that has no finite square: to NaN or Inf, or by too large a number."""
    is_overflow = (columns["nonfinite"] == 0) & np.isinf(columns["update"] + columns["norm_before"])
    return is_overflow | (np.isfinite(columns["norm_before"]) & ~np.isfinite(columns["update"]))


def _was_skipped_on_device(row: Row, optimizer: int) -> bool:
    """Whether a fused optimizer skipped the step on the device, because the scaler found Inf."""
    return optimizer in row.fused and optimizer in skipped_in(row)
