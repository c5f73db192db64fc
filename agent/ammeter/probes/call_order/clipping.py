"""Clipping of gradients that are still scaled: by norm or by value, with torch's own functions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.ledger import Ledger
from ammeter.probes.call_order.telling import Telling, name_of, scale_of
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import is_plain
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.session import Session


class Clipping:
    def __init__(self, session: Session, telling: Telling, ledger: Ledger) -> None:
        self._session = session
        self._telling = telling
        self._ledger = ledger

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        by_value, done = guard(self._by_value), guard(self._done)
        return [
            *self._session.while_awake([patch.function(*clip_function(), before=guard(self._by_norm))]),
            *self._session.while_following([patch.function(*each, after=done) for each in _ENDS]),
            patch.function(torch.nn.utils.clip_grad, "clip_grad_value_", after=by_value),
            patch.function(torch.nn.utils, "clip_grad_value_", after=by_value),
        ]

    def _by_norm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        row, watched = self._session.row, self._session.watched
        if CLIP_TELLS_NORM:
            row.clip_is_finite = _is_finite(args[2] if len(args) > 2 else kwargs.get("total_norm"))
            parameters, max_norm = clip_arguments(args, kwargs)
            row.clipped = watched.optimizers_of(parameters)
        else:
            gradients, max_norm = _older_arguments(args)
            row.clipped = watched.optimizers_of_gradients(gradients)
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
    known = async_copy.known(total_norm) if isinstance(total_norm, torch.Tensor) and is_plain(total_norm) else None
    return known is None or math.isfinite(known)


_MODULE = torch.nn.utils.clip_grad
_CLIPS, _GROUPS = "_clip_grads_with_norm_", "_group_tensors_by_device_and_dtype"
_CHANGING = ("clip_grad_value_", _CLIPS)
CLIP_TELLS_NORM = hasattr(_MODULE, _CLIPS)
"""Since torch 2.6. Before, all that clip_grad_norm_ calls by a name of its module is what sorts the gradients."""

_ENDS = [(_MODULE, _CLIPS)] if CLIP_TELLS_NORM else [(each, "clip_grad_norm_") for each in (_MODULE, torch.nn.utils)]
"""What has clipped when it returns. Of older versions one imported by name is not heard here."""


def clip_function() -> tuple[Any, str]:
    """Where torch clips by norm: a name it looks up itself, so that a clip_grad_norm_ imported by name is seen too."""
    return _MODULE, _CLIPS if CLIP_TELLS_NORM else _GROUPS


def sorting_function() -> tuple[Any, str]:
    """What every function of torch that clips calls, by a name of its module, on the gradients that it is to change."""
    return _MODULE, _GROUPS


def about_to_change(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The gradients that a call of sorting_function() is about, where whoever calls it changes them next."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _MODULE.__file__:
        frame = frame.f_back
    changes = frame is not None and frame.f_code.co_name in _CHANGING
    return [each for each in args[0][0] if each is not None] if changes and args else []


def _older_arguments(args: tuple[Any, ...]) -> tuple[list[torch.Tensor], float]:
    """(gradients, max_norm) of torch before 2.6, whose clip_grad_norm_ has used up a generator of parameters by now.
    Clipping by value sorts gradients, too, and gives none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _MODULE.__file__:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "clip_grad_norm_":
        return [], math.nan
    return args[0][0], float(frame.f_locals["max_norm"])


def clip_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], float]:
    """(parameters, max_norm) of a clipping call. A generator is not touched: its parameters stay unknown."""
    parameters = args[0] if args else kwargs.get("parameters", ())
    max_norm = args[1] if len(args) > 1 else kwargs.get("max_norm", float("nan"))
    if isinstance(parameters, torch.Tensor):
        return [parameters], float(max_norm)
    return list(parameters) if isinstance(parameters, list | tuple) else [], float(max_norm)
