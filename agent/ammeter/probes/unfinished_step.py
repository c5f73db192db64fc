"""Reports the step in which the program ends, if its loss or gradients are not finite.

Many programs end themselves on a NaN: they call sys.exit() or raise an error before backward(), have clip_grad_norm_
raise one, or use torch's anomaly detection. Such a step has no row, because no optimizer steps in it.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.origin.loss_origin import LossOrigin
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.tensors.live_objects import live_objects
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.gradients import gradient
from ammeter.torch_hooks.hook_points import AtEnd

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

MAX_NODES = 4096
"""Nodes of a graph that are searched for a watched weight."""

_ANOMALY = re.compile(r"^Function '(\w+)' returned nan values in its \d+th output")
"""The error of torch.autograd's anomaly detection. What is returned are gradients."""


class UnfinishedStep:
    name = "unfinished_step"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._origin = LossOrigin(session)
        self._last_was_finite = True
        self._found: tuple[int, dict[str, Any]] | None = None
        """The open step, and the event that it has if the program ends in it."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        return [patch.function(sys, "exit", before=guard(self._exits)), AtEnd(guard(self._ends))]

    def finish(self, row: Row) -> None:
        self._last_was_finite = math.isfinite(row.loss or 0.0)

    def _exits(self, args: tuple[Any, ...], _: dict[str, Any]) -> None:
        """Searches the loss while the variables of the program exist; it may still catch SystemExit."""
        if args and args[0]:
            self._search(call_site.line())

    def _ends(self) -> None:
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        row = self._session.row
        if (self._found is None or self._found[0] != row.step) and (error or self._session.working):
            self._search(call_site.line_in(error.__traceback__) if error else "", error)
        if self._found and self._found[0] == row.step and not (row.stepped or row.skipped):
            row.events.append(("step.unfinished", {**self._found[1], "step": row.step}))

    def _search(self, line: str, error: BaseException | None = None) -> None:
        """Searches what is not finite in the open step."""
        row = self._session.row
        if row.stepped or row.skipped or not self._last_was_finite:
            return
        found = self._loss(row, line) or self._refused(row, error)
        self._found = (row.step, {"caller": line, **found}) if found else None

    def _loss(self, row: Row, line: str) -> dict[str, Any]:
        known = row.raw.get("losses", ())
        for loss in known:
            if all(value.ready() for value in loss.values) and not math.isfinite(loss.number()):
                return {"loss": loss.number(), "backward": True}
        losses = [] if known else unseen(self._live_loss, ())
        if not losses:
            return {}
        self._origin.search(losses, call_site.NOWHERE, line=line)
        origin = {"origin": origin} if (origin := row.raw.pop("loss_origin", None)) else {}
        return {"loss": float(losses[0].detach()), "backward": False, **origin}

    def _live_loss(self) -> Sequence[torch.Tensor]:
        """The newest loss of watched weights that is not finite. A program that ends itself still has it."""
        weights = {id(tensor) for _, tensor in self._session.watched.alive()}
        newest = reversed(live_objects(torch.Tensor))
        return next(([tensor] for tensor in newest if _is_bad_loss(tensor) and _leads_to(tensor, weights)), ())

    def _refused(self, row: Row, error: BaseException | None) -> dict[str, Any]:
        """The gradients that the program refused; with a scaler they may have overflowed, which is no fault."""
        if row.scaler_used or row.raw.get("scaled"):
            return {}
        found = _anomaly(error) or (unseen(self._gradients, ()) if row.raw.get("micro_batches") else {})
        return {**found, "loss_read": bool(row.raw.get("losses"))} if found else {}

    def _gradients(self) -> dict[str, Any]:
        """Where gradients are not finite, as in the event gradient.nonfinite."""
        watched = self._session.watched
        read = {index: grad for index, tensor in watched.alive() if (grad := gradient(tensor)) is not None}
        if not all(map(_is_readable, read.values())):
            return {}
        finite = {index: bool(torch.isfinite(grad).all()) for index, grad in read.items()}
        bad = [index for index in sorted(finite) if not finite[index]]
        if not bad:
            return {}
        after = sum(index > bad[-1] for index in finite)
        return {
            "count": len(bad),
            "last": watched.tensors[bad[-1]].name,
            "finite_after": after,
            "finite": len(finite) - len(bad),
        }


def _anomaly(error: BaseException | None) -> dict[str, Any]:
    """What torch's anomaly detection found, by its error."""
    found = _ANOMALY.match(str(error)) if isinstance(error, RuntimeError) else None
    return {"function": found[1]} if found else {}


def _is_bad_loss(tensor: torch.Tensor) -> bool:
    if type(tensor) is not torch.Tensor or tensor.grad_fn is None or tensor.numel() != 1:
        return False
    return tensor.is_floating_point() and _is_readable(tensor) and not bool(torch.isfinite(tensor.detach()).all())


def _is_readable(tensor: torch.Tensor) -> bool:
    """Whether its numbers can be read without waiting for a device."""
    if not has_numbers(tensor):
        return False
    return tensor.is_cpu or (tensor.is_cuda and torch.cuda.current_stream(tensor.device).query())


def _leads_to(loss: torch.Tensor, weights: set[int]) -> bool:
    """Whether one of the first nodes behind a loss accumulates the gradient of one of these tensors."""
    waiting, seen = [loss.grad_fn], {loss.grad_fn}
    while waiting and len(seen) < MAX_NODES:
        node: Any = waiting.pop()
        if id(getattr(node, "variable", None)) in weights:
            return True
        behind = [other for other, _ in node.next_functions if other is not None and other not in seen]
        seen.update(behind)
        waiting += behind
    return False
