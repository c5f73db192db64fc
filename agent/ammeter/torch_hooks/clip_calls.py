"""Where torch clips gradients, and what a call of it clips: by norm or by value, in old and new versions."""

from __future__ import annotations

import math
import sys
from types import FrameType
from typing import Any

import torch

_MODULE = torch.nn.utils.clip_grad
_CLIPS, _GROUPS = "_clip_grads_with_norm_", "_group_tensors_by_device_and_dtype"
_CHANGING = ("clip_grad_value_", _CLIPS)
CLIP_TELLS_NORM = hasattr(_MODULE, _CLIPS)
"""Since torch 2.6. Before, all that clip_grad_norm_ calls by a name of its module is what sorts the gradients."""

_BY_NORM = "clip_grad_norm_"
CLIP_ENDS = [(_MODULE, _CLIPS)] if CLIP_TELLS_NORM else [(_MODULE, _BY_NORM), (torch.nn.utils, _BY_NORM)]
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


def older_clip_arguments(args: tuple[Any, ...]) -> tuple[list[torch.Tensor], float]:
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
