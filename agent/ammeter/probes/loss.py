"""The loss, caught where scale() or backward() is called on it, so that nobody has to log it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter import tap
from ammeter.stats import transfer
from ammeter.stats.unseen import has_numbers

if TYPE_CHECKING:
    from ammeter.notes import Note
    from ammeter.row import Row
    from ammeter.session import Session


class Loss:
    name = "loss"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._out_of_scale: set[int] = set()
        """ids of what scale() returned last: what backward() is called on then is not the loss but a multiple."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        kinds = self._session.watched.scaler_kinds
        return self._session.while_awake(
            [
                *tap.methods(kinds, "scale", before=guard(self._scaling), after=guard(self._scaled)),
                tap.backward(before=guard(self._backward)),
            ]
        )

    def adopt(self, row: Row, note: Note, here: bool) -> None:
        for loss in note.losses:
            row.later("loss", transfer.number(loss))
        if note.backwards:
            row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + note.backwards
        if note.scaled:
            row.raw["scaled"] = True

    def finish(self, row: Row) -> None:
        losses, backwards = row.transfers.get("loss"), row.raw.get("micro_batches")
        if losses:
            row.scalars["loss"] = sum([each.number() for each in losses]) / len(losses)
        if backwards:
            row.scalars["micro_batches"] = backwards

    def _scaling(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        scaler = args[0]
        if scaler.is_enabled() and self._session.watched.owns(scaler):
            row = self._session.row
            row.raw["scaled"] = True
            self._keep(row, args[1] if len(args) > 1 else kwargs.get("outputs"))

    def _scaled(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        if args[0].is_enabled():
            self._out_of_scale.update(id(each) for each in _several(result))

    def _backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if tap.inside_backward():
            return
        row, outputs = self._session.row, tap.outputs(args, kwargs)
        row.raw["micro_batches"] = row.raw.get("micro_batches", 0) + 1
        if not row.raw.get("scaled") and not any(id(each) in self._out_of_scale for each in _several(outputs)):
            self._keep(row, outputs)
        if self._out_of_scale:
            self._out_of_scale.clear()

    def _keep(self, row: Row, outputs: Any) -> None:
        for each in _several(outputs):
            if isinstance(each, torch.Tensor) and each.numel() == 1 and has_numbers(each):
                row.later("loss", transfer.of(each))


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, list | tuple) else (outputs,)
