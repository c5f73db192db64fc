"""Records losses at calls of scale(), backward() and torch.autograd.grad(), without any logging code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.origin.loss_origin import LossOrigin
from ammeter.probes.targets.missing import MissingTargets
from ammeter.recording import returned_losses
from ammeter.recording.loss_shares import MIN_OWN_SCALE, factors, has_divisor, own_scale
from ammeter.recording.losses import BackwardLoss
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import has_numbers
from ammeter.torch_hooks import call_site, loss_graph, patch
from ammeter.torch_hooks.closures import version
from ammeter.torch_hooks.loss_graph import summands

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

State = tuple[int, int] | None


class Loss:
    name = "loss"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._scaled_ids: set[int] = set()
        """ids of the latest results of scale(): backward() on one of them receives a multiple of the loss."""
        self._states_before: dict[int, State] = {}
        guard = session.guard("origin", any_thread=False)
        self._origin = LossOrigin(session, guard)
        self._search_origin = guard(self._origin.search)
        self._targets = MissingTargets(session)
        self._guard_targets = guard = session.guard("missing_targets", any_thread=False)
        self._examine_targets, self._read_targets = guard(self._targets.examine), guard(self._targets.examine_later)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = self._session.watched.scaler_kinds
        hooks = torch.autograd.graph.saved_tensors_hooks
        handles = (
            []
            if loss_graph.SAVED_TENSORS_EXPOSE_HOOKS
            else [patch.method(hooks, "__enter__", before=guard(loss_graph.mark_saved_hooks))]
        )
        pauses = [
            *patch.methods(kinds, "scale", before=guard(self._before_scale), after=guard(self._after_scale)),
            patch.backward(before=guard(self._before_backward), after=guard(self._after_backward)),
            patch.function(torch.autograd, "grad", before=guard(self._before_grad)),
            *self._targets.attach(self._guard_targets),
        ]
        return [self._origin, *handles, *self._session.fast_path.pauses(pauses)]

    def finish(self, row: Row) -> None:
        caught, backwards = row.raw.get("losses"), row.raw.get("micro_batches")
        if caught:
            caught = self._unscaled(caught, row)
        if caught:
            losses = self._session.losses
            watched, attempted = self._session.watched, row.stepped | row.skipped
            in_turn = not watched.optimizers.at_most_one() and any(
                id(optimizer) not in attempted for optimizer in watched.optimizers
            )
            row.scalars |= losses.columns(caught, row.raw.get("attempts", ()), in_turn=in_turn)
            row.loss = sum([loss.number() for loss in caught])
            for loss in caught:
                if not all(value.on_host for value in loss.values):  # the others are known at backward()
                    self._compare(loss.number())
        if backwards:
            row.scalars["micro_batches"] = backwards
        self._targets.finish(row)

    def sees_zero_loss(self, root: torch.Tensor, loss: BackwardLoss) -> None:
        """Examines the targets of a loss of zero on the fast path."""
        if self._session.losses.are_of_backward:
            self._examine_targets((root,), loss)

    def _unscaled(self, caught: Sequence[BackwardLoss], row: Row) -> Sequence[BackwardLoss]:
        """Returns the losses of a step without the loss scale that the program multiplied them by, if it did."""
        if scale := row.raw.get("scaled_by"):  # in a call that was not observed
            return [loss.divided_by(scale.number()) for loss in caught]
        losses = self._session.losses
        if not row.raw.get("scaled"):  # with scaler.get_scale(), the scale of a GradScaler is a factor like others
            known = [update.scale.number() for update in row.raw.get("updates", ())]
            caught = [
                _without_factor(loss, [factor for factor in factors(loss.parts) if has_divisor(known, factor)])
                for loss in caught
            ]
        caught = losses.unscaled(caught)
        if not losses.are_of_backward:  # no gradients prove the program's own scale
            caught = [_without_factor(loss, [own_scale(loss.parts)]) for loss in caught]
        return caught

    def _before_scale(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler.is_enabled() and self._session.watched.owns(scaler):
            row = self._session.row
            row.raw["scaled"] = True
            self._train_with_backward(row)
            self._record(row, args[1] if len(args) > 1 else kwargs.get("outputs"))

    def _after_scale(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        if args[0].is_enabled():
            self._scaled_ids.update(id(output) for output in _as_sequence(result))

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if patch.inside_backward():
            return
        row, outputs = self._session.row, patch.outputs(args, kwargs)
        self._targets.backward()
        self._train_with_backward(row)
        row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + 1
        if not row.raw.get("scaled") and not any(id(output) in self._scaled_ids for output in _as_sequence(outputs)):
            self._record(row, outputs)
        if self._scaled_ids:
            self._scaled_ids.clear()
        watched = self._session.watched
        if not (watched.optimizers.at_most_one() or watched.by_several_threads):
            self._states_before = self._gradients()

    def _before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records the loss of a program that assigns its gradients itself."""
        session = self._session
        if session.losses.are_of_backward or patch.inside_backward():
            return
        loss = returned_losses.loss_of(args, kwargs, session.watched)
        if loss is None:
            return
        row = session.row
        row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + 1
        self._record(row, loss, returned_losses.CALL)
        if returned_losses.is_transforming() or any(own_scale(caught.parts) for caught in row.raw.get("losses", ())):
            session.fast_path.disable()  # which finishes rows in this call, and records no scale

    def _train_with_backward(self, row: Row) -> None:
        """Discards losses of torch.autograd.grad() when a program proves to train with backward().

        Its other gradients are measurements, such as the norm of the gradient of one of its losses.
        """
        losses = self._session.losses
        if not losses.are_of_backward:
            losses.are_of_backward = True
            row.raw.pop("losses", None)
            row.raw.pop("micro_batches", None)

    def _after_backward(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        """Assigns the losses to the optimizers whose gradients this backward pass changed."""
        if not self._states_before or patch.inside_backward():
            return
        before, self._states_before = self._states_before, {}
        if self._session.watched.by_several_threads:
            return  # another thread may replace these gradients now
        touched = frozenset(key for key, state in self._gradients().items() if state != before.get(key))
        for loss in self._session.row.raw.get("losses", ()):
            if loss.touched is None:
                loss.touched = touched

    def _gradients(self) -> dict[int, State]:
        """Identity and version of one gradient of each optimizer."""
        return {id(optimizer): _state(optimizer) for optimizer in self._session.watched.optimizers}

    def _record(self, row: Row, outputs: Any, call: str = "") -> None:
        """Records a loss. Several outputs are one loss, their sum.

        Only the first evaluation of a closure counts: later ones do not belong to the step's own weights.

        Args:
            call: the call that receives the loss, if it is neither backward() nor scale().
        """
        closure = self._session.closure
        roots = _as_sequence(outputs)
        if not all(_is_number(root) for root in roots) or (closure.optimizer is not None and closure.reevaluated):
            return
        values = [async_copy.of(returned_losses.value_of(root) if call else root) for root in roots]
        for value in values:
            row.later("loss", value)
        parts = tuple(part for root in roots for part in summands(root)) if len(roots) > 1 else summands(roots[0])
        caught = BackwardLoss(values, parts, call_site.place(), len(row.raw.get("attempts", ())))
        row.raw.setdefault("losses", []).append(caught)
        self._session.losses.passes += 1
        if all(value.on_host for value in values):
            self._examine(roots, caught, call)
        elif self._session.follows and not call:
            self._read_targets(roots, caught)
        for constant in [constant for part in parts for constant in part.transfers()]:
            row.wait_for(constant)

    def _examine(self, roots: Sequence[torch.Tensor], loss: BackwardLoss, call: str) -> None:
        """Examines a loss that is on the host."""
        number = loss.number()
        self._compare(number)
        if not math.isfinite(number):
            self._search_origin(roots, loss.place, call)
        if not call and not (number and math.isfinite(number)):
            self._examine_targets(roots, loss)

    def _compare(self, loss: float) -> None:
        """Requires norms of the open step if the loss jumps. From a device it arrives a step later."""
        session = self._session
        if session.loss_level.jumps(loss):
            if session.loss_level.falls(loss):
                session.governor.norm_schedule.loss_fell(session.row.step)
            session.governor.norm_schedule.loss_jumped(session.row.step)


def _without_factor(loss: BackwardLoss, found: Sequence[float]) -> BackwardLoss:
    """Returns a loss divided by the loss scale among its factors. A factor below MIN_OWN_SCALE may be a weight."""
    scale = max(found, default=0.0)
    return loss.divided_by(scale) if scale >= MIN_OWN_SCALE else loss


def _is_number(root: Any) -> bool:
    return isinstance(root, torch.Tensor) and root.numel() == 1 and has_numbers(root) and not root.is_complex()


def _state(optimizer: torch.optim.Optimizer) -> State:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return id(parameter.grad), version(parameter.grad)
    return None


def _as_sequence(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, list | tuple) else (outputs,)
