"""Recognises the contents of a saved or loaded object by its structure.

The walk calls no method of the object, and copies and keeps nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler

from ammeter.tensors.hidden_reads import unseen

MAX_NODES = 10_000
MAX_DEPTH = 6

_SCALER = {"scale", "growth_factor", "backoff_factor", "growth_interval"}
_SCHEDULER = ({"last_epoch", "_step_count"}, {"last_epoch", "base_lrs"}, {"last_epoch", "_last_lr"})
_PROGRESS = re.compile(r"(^|[_.])(step|epoch|iter|iteration|it|batch)s?($|_num$|_idx$|_count$)|^current_")
_RNG = re.compile(r"(^|[_.])rng|random_?state|generator_?state", re.IGNORECASE)
_SAFETENSORS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_RNG_BYTES = (16, 5056)
"""Sizes in bytes of the generator states of torch.cuda and torch, which are uint8 tensors."""

MAX_GROUPS = 64
MAX_SCALES = 16
"""Parameter groups of an optimizer's state, and possible loss scales, that are kept."""

Group = tuple[int, dict[str, float]]
"""A parameter group: its number of tensors, and its settings that are numbers."""


class Contents(msgspec.Struct):
    """The parts of a training state that were recognised.

    Attributes:
        weights: dtype -> elements of all floating-point tensors outside an optimizer's state.
        shapes: elements of the weights by shape, to distinguish this model from another.
        progress: whether there is a step or epoch.
        groups: the parameter groups in each optimizer's state.
        scales: powers of two above 1, among which a loss scale would be.
        complete: false if the walk ended before it had visited everything.
    """

    weights: Counter[str] = msgspec.field(default_factory=Counter)
    shapes: Counter[tuple[int, ...]] = msgspec.field(default_factory=Counter)
    optimizer: bool = False
    scaler: bool = False
    scheduler: bool = False
    rng: bool = False
    progress: bool = False
    groups: list[list[Group]] = msgspec.field(default_factory=list)
    scales: set[float] = msgspec.field(default_factory=set)
    complete: bool = True

    def plain(self) -> dict[str, Any]:
        """The contents as the data of an event."""
        parts = {name: getattr(self, name) for name in ("optimizer", "scaler", "scheduler", "rng", "progress")}
        return {"weights": dict(sorted(self.weights.items())), **parts, "whole": self.complete}

    def is_state(self) -> bool:
        """Whether the contents include a state that only training needs."""
        return self.optimizer or self.scaler or self.scheduler or self.rng


def contents_of(saved: Any) -> Contents:
    """Walks an object breadth first: at most 10,000 nodes and six levels.

    The walk calls no method of the program.
    """
    return unseen(lambda: _walked(saved), ())


def _walked(saved: Any) -> Contents:
    contents = Contents()
    queue: deque[tuple[str, Any, int]] = deque([("", saved, 0)])
    visited = 0
    while queue and visited < MAX_NODES:
        key, value, depth = queue.popleft()
        visited += 1
        if _recognise(contents, key, value):
            continue
        if depth == MAX_DEPTH:
            contents.complete = contents.complete and not isinstance(value, dict | list | tuple)
            continue
        for inner in _inside(value):
            if len(queue) + visited >= MAX_NODES:
                contents.complete = False
                break
            queue.append((*inner, depth + 1))
    return contents


def contents_of_specs(specs: Mapping[str, Any]) -> Contents:
    """The contents of a safetensors file.

    Args:
        specs: tensor name -> dtype and shape.
    """
    contents = Contents()
    for spec in list(specs.values())[:MAX_NODES]:
        dtype, shape = (spec["dtype"], spec["shape"]) if isinstance(spec, dict) else (spec.dtype, spec.shape)
        name = _SAFETENSORS.get(str(dtype), str(dtype))
        if "float" in name:
            _add(contents, name, tuple(shape))
    return contents


def _recognise(contents: Contents, key: str, value: Any) -> bool:
    """Records a value if its kind is recognised.

    Returns:
        Whether it was recognised. The walk then skips the inside of the value.
    """
    if isinstance(value, torch.Tensor):
        _tensor(contents, key, value)
    elif isinstance(value, torch.optim.Optimizer) or is_optimizer_state(value):
        contents.optimizer = True
        _add_groups(contents, vars(value) if isinstance(value, torch.optim.Optimizer) else value)
    elif isinstance(value, torch.amp.GradScaler):
        contents.scaler = contents.scaler or value.is_enabled()
    elif isinstance(value, dict) and dict.keys(value) >= _SCALER:
        contents.scaler = True
        _add_scale(contents, dict.get(value, "scale"))
    elif isinstance(value, LRScheduler) or _is_scheduler(value):
        contents.scheduler = True
    elif isinstance(value, int) and not isinstance(value, bool):
        contents.progress = contents.progress or bool(_PROGRESS.search(key))
    elif isinstance(value, float):
        _add_scale(contents, value)
    elif isinstance(value, dict | tuple | list | bytes | np.ndarray) and _RNG.search(key):
        contents.rng = True
    else:
        return False
    return True


def _tensor(contents: Contents, key: str, tensor: torch.Tensor) -> None:
    if is_lazy(tensor):
        return
    if tensor.dtype is torch.uint8 and (tensor.numel() in _RNG_BYTES or _RNG.search(key)):
        contents.rng = True
    elif tensor.is_floating_point() or tensor.is_complex():
        _add(contents, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    elif tensor.numel() == 1 and _PROGRESS.search(key):
        contents.progress = True


def _add(contents: Contents, dtype: str, shape: tuple[int, ...]) -> None:
    elements = 1
    for extent in shape:
        elements *= extent
    contents.weights[dtype] += elements
    contents.shapes[shape] += elements


def _add_scale(contents: Contents, value: Any) -> None:
    if isinstance(value, float) and 1 < value < math.inf and math.frexp(value)[0] == 0.5:
        contents.scales |= {value} if len(contents.scales) < MAX_SCALES else set()


def _add_groups(contents: Contents, state: dict[str, Any]) -> None:
    groups = dict.get(state, "param_groups")
    if isinstance(groups, list) and all(isinstance(group, dict) for group in groups) and len(groups) <= MAX_GROUPS:
        contents.groups += [[group_of(group) for group in groups]] if len(contents.groups) < MAX_GROUPS else []


def group_of(group: dict[str, Any]) -> Group:
    """Returns the number of tensors and the numeric settings of a parameter group."""
    settings: dict[str, float] = {}
    for name, value in dict.items(group):
        several = value[:4] if isinstance(value, list | tuple) and name != "params" else [value]
        for index, number in enumerate(several):
            if isinstance(number, int | float):
                settings[f"{name} {index}"] = float(number)
    parameters = dict.get(group, "params")
    return len(parameters) if isinstance(parameters, list | tuple) else 0, settings


def is_optimizer_state(value: Any) -> bool:
    """Whether a value is an Optimizer.state_dict(), or its flat form in torch.distributed.checkpoint."""
    if not isinstance(value, dict):
        return False
    keys = dict.keys(value)
    flat = (isinstance(key, str) and key.startswith("param_groups.") for key in keys)
    return keys >= {"state", "param_groups"} or any(flat)


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, dict) and any(dict.keys(value) >= names for names in _SCHEDULER)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.nn.Module):
        yield from torch.nn.Module.named_parameters(value)
    elif isinstance(value, dict):
        yield from ((key if isinstance(key, str) else "", element) for key, element in dict.items(value))
    elif isinstance(value, list | tuple) and not _are_numbers(value):
        yield from (("", element) for element in value)


def _are_numbers(values: Collection[Any]) -> bool:
    """Whether a list starts with a number or string.

    Such lists, for example a history of losses, can be long and contain no state.
    """
    first = next(iter(values), None)
    return isinstance(first, int | float | str)
