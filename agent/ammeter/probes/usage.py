"""Calls in an order that breaks training quietly; each is told once, with the line that made it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter import caller, tap
from ammeter.stats import transfer
from ammeter.stats.unseen import is_plain, unseen

if TYPE_CHECKING:
    from ammeter.row import Row
    from ammeter.session import Session


class Usage:
    name = "usage"

    def __init__(self, session: Session) -> None:
        self._session = session
        self._told: set[str] = set()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        module, name = clip_function()
        return [tap.function(module, name, before=guard(self._clipping))]

    def finish(self, row: Row) -> None:
        if "clip" in row.raw:
            scale = float(row.arrived("clip_scale")[0][0])
            row.events.append(("usage.clip_before_unscale", {**row.raw["clip"], "scale": scale}))

    def _clipping(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        parameters, max_norm = clip_arguments(args, kwargs)
        watched, row = self._session.watched, self._session.row
        row.clipped = watched.optimizers_of(parameters)
        row.clip_is_finite = _is_finite(args[2] if len(args) > 2 else kwargs.get("total_norm"))
        for optimizer in row.clipped:
            row.scalars["clip_max"] = max_norm
            scaler = watched.scaling(optimizer) if row.raw.get("scaled") else None
            if scaler is not None and scaler._scale is not None:
                self._tell_once("usage.clip_before_unscale", max_norm=max_norm, scale=transfer.of(scaler._scale))

    def _tell_once(self, event: str, max_norm: float, scale: transfer.Transfer) -> None:
        if event in self._told:
            return
        self._told.add(event)
        self._session.row.later("clip_scale", scale)
        self._session.row.raw["clip"] = {"caller": caller.line(), "max_norm": max_norm}


def _is_finite(total_norm: Any) -> bool:
    """Whether the norm that torch has computed for the clip is finite, as far as the host knows it."""
    if isinstance(total_norm, torch.Tensor) and total_norm.is_cpu and is_plain(total_norm):
        return unseen(lambda: math.isfinite(total_norm.item()), (total_norm,))
    return True


def clip_function() -> tuple[Any, str]:
    """Where torch clips by norm: the name it looks up itself, so that a clip_grad_norm_ imported by name is seen too.

    Before torch had that inner function only calls through the module's attribute are seen.
    """
    module = torch.nn.utils.clip_grad
    return module, "_clip_grads_with_norm_" if hasattr(module, "_clip_grads_with_norm_") else "clip_grad_norm_"


def clip_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], float]:
    """(parameters, max_norm) of a clipping call. A generator is not touched: its parameters stay unknown."""
    parameters = args[0] if args else kwargs.get("parameters", ())
    max_norm = args[1] if len(args) > 1 else kwargs.get("max_norm", float("nan"))
    if isinstance(parameters, torch.Tensor):
        return [parameters], float(max_norm)
    return list(parameters) if isinstance(parameters, list | tuple) else [], float(max_norm)
