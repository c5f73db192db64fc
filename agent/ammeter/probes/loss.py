"""Records losses at calls of scale() and backward(), without any logging code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.recording.losses import Caught
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import has_numbers
from ammeter.torch_hooks import call_site, loss_graph, patch
from ammeter.torch_hooks.closures import version
from ammeter.torch_hooks.loss_graph import look

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.fast_notes import FastStep
    from ammeter.recording.row import Row

State = tuple[int, int] | None


class Loss:
    name = "loss"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._out_of_scale: set[int] = set()
        """ids of the latest results of scale(): backward() on one of them receives a multiple of the loss."""
        self._before: dict[int, State] = {}

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = self._session.watched.scaler_kinds
        hooks = torch.autograd.graph.saved_tensors_hooks
        asked = (
            []
            if loss_graph.SAVED_TELL_HOOKS
            else [patch.method(hooks, "__enter__", before=guard(loss_graph.hooks_seen))]
        )
        return asked + self._session.while_awake(
            [
                *patch.methods(kinds, "scale", before=guard(self._scaling), after=guard(self._scaled)),
                patch.backward(before=guard(self._backward), after=guard(self._went_back)),
            ]
        )

    def apply_fast_step(self, row: Row, note: FastStep, here: bool) -> None:
        if note.losses:
            for caught in note.losses:
                for value in caught.values:
                    row.later("loss", value)
            row.raw["losses"] = [*row.raw.get("losses", ()), *note.losses]
        if note.backwards:
            row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + note.backwards
        if note.scaled:
            row.raw["scaled"] = True

    def finish(self, row: Row) -> None:
        caught, backwards = row.raw.get("losses"), row.raw.get("micro_batches")
        if caught:
            watched, asked = self._session.watched, row.stepped | row.skipped
            in_turn = not watched.optimizers.at_most_one() and any(
                id(optimizer) not in asked for optimizer in watched.optimizers
            )
            row.scalars |= self._session.losses(caught, row.raw.get("attempts", ()), in_turn=in_turn)
            row.loss = sum([loss.number() for loss in caught])
        if backwards:
            row.scalars["micro_batches"] = backwards

    def _scaling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler.is_enabled() and self._session.watched.owns(scaler):
            row = self._session.row
            row.raw["scaled"] = True
            self._catch(row, args[1] if len(args) > 1 else kwargs.get("outputs"))

    def _scaled(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        if args[0].is_enabled():
            self._out_of_scale.update(id(output) for output in _several(result))

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if patch.inside_backward():
            return
        row, outputs = self._session.row, patch.outputs(args, kwargs)
        row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + 1
        if not row.raw.get("scaled") and not any(id(output) in self._out_of_scale for output in _several(outputs)):
            self._catch(row, outputs)
        if self._out_of_scale:
            self._out_of_scale.clear()
        if not self._session.watched.optimizers.at_most_one():
            self._before = self._gradients()

    def _went_back(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        """Assigns the losses to the optimizers whose gradients this backward pass changed."""
        if not self._before or patch.inside_backward():
            return
        before, self._before = self._before, {}
        touched = frozenset(key for key, state in self._gradients().items() if state != before.get(key))
        for loss in self._session.row.raw.get("losses", ()):
            if loss.touched is None:
                loss.touched = touched

    def _gradients(self) -> dict[int, State]:
        """Identity and version of one gradient of each optimizer."""
        return {id(optimizer): _state(optimizer) for optimizer in self._session.watched.optimizers}

    def _catch(self, row: Row, outputs: Any) -> None:
        """Records a loss. Several outputs are one loss, their sum.

        Only the first evaluation of a closure counts: later ones do not belong to the step's own weights.
        """
        closure = self._session.closure
        roots = _several(outputs)
        if not all(_is_number(root) for root in roots) or (closure.optimizer is not None and closure.again):
            return
        values = [async_copy.of(root) for root in roots]
        for value in values:
            row.later("loss", value)
        parts = tuple(part for root in roots for part in look(root)) if len(roots) > 1 else look(roots[0])
        caught = Caught(values, parts, call_site.place(), len(row.raw.get("attempts", ())))
        row.raw.setdefault("losses", []).append(caught)
        for constant in [constant for part in parts for constant in part.transfers()]:
            row.wait_for(constant)


def _is_number(root: Any) -> bool:
    return isinstance(root, torch.Tensor) and root.numel() == 1 and has_numbers(root) and not root.is_complex()


def _state(optimizer: torch.optim.Optimizer) -> State:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return id(parameter.grad), version(parameter.grad)
    return None


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, list | tuple) else (outputs,)
