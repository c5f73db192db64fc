"""Clipping of gradients that are still scaled: by norm or by value, with torch's own functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter import tap
from ammeter.probes.usage.ledger import Ledger
from ammeter.probes.usage.telling import Telling, name_of, scale_of
from ammeter.stats import transfer
from ammeter.stats.unseen import is_plain

if TYPE_CHECKING:
    from ammeter.session import Session


class Clipping:
    def __init__(self, session: Session, telling: Telling, ledger: Ledger) -> None:
        self._session = session
        self._telling = telling
        self._ledger = ledger

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        module, name = clip_function()
        by_value = guard(self._by_value)
        return [
            *self._session.while_awake([tap.function(module, name, before=guard(self._by_norm))]),
            *self._session.while_following([tap.function(module, name, after=guard(self._done))]),
            tap.function(torch.nn.utils.clip_grad, "clip_grad_value_", after=by_value),
            tap.function(torch.nn.utils, "clip_grad_value_", after=by_value),
        ]

    def _by_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        row = self._session.row
        row.clip_is_finite = _is_finite(args[2] if len(args) > 2 else kwargs.get("total_norm"))
        parameters, max_norm = clip_arguments(args, kwargs)
        row.clipped = self._session.watched.optimizers_of(parameters)
        if row.clipped:
            row.scalars["clip_max"] = max_norm
            self._look(row.clipped, {"max_norm": max_norm})

    def _done(self, _: tuple[Any, ...], __: dict[str, Any], ___: Any) -> None:
        self._ledger.adopt()

    def _by_value(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        """Whose gradients were clipped shows in the gradients: the parameters are mostly a generator, used up now."""
        clipped = [optimizer for account in self._ledger.adopt() if (optimizer := account.optimizer())]
        self._look(clipped, {"clip_value": float(args[1] if len(args) > 1 else kwargs["clip_value"])})

    def _look(self, clipped: list[torch.optim.Optimizer], limit: dict[str, float]) -> None:
        if not self._session.row.raw.get("scaled"):
            return
        for optimizer in clipped:
            scale = scale_of(self._session.watched.scaling(optimizer))
            if scale is not None:
                data: dict[str, Any] = {**limit, "scale": scale, "optimizer": name_of(optimizer)}
                self._telling.once("usage.clip_before_unscale", **data)


def _is_finite(total_norm: Any) -> bool:
    """Whether the norm that torch has computed for the clip is finite, as far as the host knows it."""
    known = transfer.known(total_norm) if isinstance(total_norm, torch.Tensor) and is_plain(total_norm) else None
    return known is None or math.isfinite(known)


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
