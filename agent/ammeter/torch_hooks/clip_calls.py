"""Locates torch's gradient clipping, by norm or by value, in old and new versions."""

from __future__ import annotations

import math
import sys
from types import FrameType
from typing import Any

import torch

_MODULE = torch.nn.utils.clip_grad
_CLIPS, _GROUPS = "_clip_grads_with_norm_", "_group_tensors_by_device_and_dtype"
_CHANGING = ("clip_grad_value_", _CLIPS)
CLIP_REPORTS_NORM = hasattr(_MODULE, _CLIPS)
"""True since torch 2.6. Before that, the only function that clip_grad_norm_ calls by a name of its module is the one
that groups the gradients."""

_BY_NORM = "clip_grad_norm_"
CLIP_ENDS = [(_MODULE, _CLIPS)] if CLIP_REPORTS_NORM else [(_MODULE, _BY_NORM), (torch.nn.utils, _BY_NORM)]
"""Functions that have clipped when they return. In older versions, one that was imported by name gives no callback
here."""


def clip_function() -> tuple[Any, str]:
    """Returns (module, name) of the function in which torch clips by norm.

    torch looks the name up itself, so that clip_grad_norm_ is also observed if the program imported it by name.
    """
    return _MODULE, _CLIPS if CLIP_REPORTS_NORM else _GROUPS


def sorting_function() -> tuple[Any, str]:
    """Returns (module, name) of the function that torch's clipping functions call on the gradients."""
    return _MODULE, _GROUPS


def about_to_change(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """Returns the gradients of a sorting_function() call if its caller changes them next, else []."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _MODULE.__file__:
        frame = frame.f_back
    changes = frame is not None and frame.f_code.co_name in _CHANGING
    return [gradient for gradient in args[0][0] if gradient is not None] if changes and args else []


def older_clip_arguments(args: tuple[Any, ...]) -> tuple[list[torch.Tensor], float]:
    """Returns (gradients, max_norm) of a clip_grad_norm_ call before torch 2.6.

    By then clip_grad_norm_ has consumed a generator of parameters. Clipping by value also groups gradients; it returns
    no gradients here.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _MODULE.__file__:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "clip_grad_norm_":
        return [], math.nan
    return args[0][0], float(frame.f_locals["max_norm"])


def clip_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[torch.Tensor], float]:
    """Returns (parameters, max_norm) of a clipping call.

    A generator is not consumed: its parameters stay unknown.
    """
    parameters = args[0] if args else kwargs.get("parameters", ())
    max_norm = args[1] if len(args) > 1 else kwargs.get("max_norm", float("nan"))
    if isinstance(parameters, torch.Tensor):
        return [parameters], float(max_norm)
    return list(parameters) if isinstance(parameters, list | tuple) else [], float(max_norm)
