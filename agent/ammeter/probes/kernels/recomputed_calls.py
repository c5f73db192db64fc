"""The calls of modules in one step: what they returned in the forward pass, and inside backward()."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint

from ammeter.torch_hooks.call_site import Spot
from ammeter.torch_hooks.targets import plain_name

MAX_MODULES = 4096
"""Modules that have hooks in one step; it bounds the cost, some 3 us for each of them and call."""

MAX_SWITCHES = 64
"""Switches that are kept of one step; it bounds memory."""

MAX_DTYPES = 8
"""Outputs of one module and shape that are kept of one step: a module may run in several dtypes."""


class Observed(NamedTuple):
    """What a call of a module returned.

    Attributes:
        dtype: of its first tensor; None if the call raised.
        autocast: dtype of the autocast around the call, on the device of this tensor; 'off' without autocast.
    """

    dtype: torch.dtype | None
    autocast: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, value: Any) -> Observed | None:
        """Reads the first floating-point tensor of an output or of arguments."""
        tensor = _first_tensor(value)
        if tensor is None:
            return None
        device = tensor.device.type
        state = str(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "off"
        return cls(tensor.dtype, state.removeprefix("torch."), tuple(tensor.shape))


class Recomputing(NamedTuple):
    """What runs a part of the forward pass again.

    Attributes:
        of_checkpoint: whether torch.utils.checkpoint does; otherwise a Function of the program.
        spot: the line in the backward() of the Function.
    """

    of_checkpoint: bool
    spot: Spot | None


class Switch(NamedTuple):
    module: str
    before: Observed
    again: Observed
    of_checkpoint: bool
    spot: Spot | None

    def is_like(self, other: Switch) -> bool:
        """Whether the dtypes are the same."""
        return (self.before.dtype, self.again.dtype) == (other.before.dtype, other.again.dtype)


class Calls:
    """The calls of one step.

    Attributes:
        modules: id of a model -> its modules that have hooks; each module belongs to one model.
        names: id of a module -> its path.
        switches: modules that ran again in another dtype, in their order.
        backward_at: line of the program that called backward().
        has_raised: whether a module raised when it ran again.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.modules: dict[int, list[weakref.ref[torch.nn.Module]]] = {}
        self.names: dict[int, str] = {}
        self.switches: list[Switch] = []
        self.backward_at: Spot | None = None
        self.has_raised = False
        self._forward: dict[int, list[Observed]] = {}

    def learn(self, root: torch.nn.Module, modules: Iterable[tuple[str, torch.nn.Module]], prefix: str) -> None:
        """Adds a model that is called for the first time in this step."""
        for name, module in modules:
            if id(module) not in self.names and len(self.names) < MAX_MODULES:
                self.names[id(module)] = (prefix + plain_name(name)).rstrip(".")
                self.modules[id(root)].append(weakref.ref(module))

    def note(self, module: torch.nn.Module, observed: Observed) -> None:
        """Keeps the output of a call outside of backward()."""
        known = self._forward.setdefault(id(module), [])
        if observed not in known and len(known) < MAX_DTYPES:
            known.append(observed)

    def switched(self, module: torch.nn.Module, again: Observed) -> Observed | None:
        """Returns the output of the forward pass with this shape, if none of them has this dtype."""
        equal = [before for before in self._forward.get(id(module), ()) if before.shape == again.shape]
        return None if any(before.dtype is again.dtype for before in equal) else next(iter(equal), None)

    def in_other_autocast(self, module: torch.nn.Module, autocast: str) -> Observed | None:
        """Returns the output of the forward pass, if autocast was in another state at each call."""
        known = self._forward.get(id(module), ())
        return None if any(before.autocast == autocast for before in known) else next(iter(known), None)

    def add(self, module: torch.nn.Module, before: Observed, again: Observed, recomputing: Recomputing | None) -> None:
        if recomputing is not None and len(self.switches) < MAX_SWITCHES:
            self.switches.append(Switch(self.names.get(id(module), ""), before, again, *recomputing))


def running_again() -> Recomputing | None:
    """Returns what runs the present call inside backward(), None if no checkpoint and no Function does.

    A hook may call a module inside backward(), too, which is no recomputation.
    """
    frame: FrameType | None = sys._getframe(1)
    inner: Spot | None = None
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _CHECKPOINT:
            return Recomputing(True, None)
        if code is _BACKWARD:
            return Recomputing(False, inner)
        if code.co_filename == _ENGINE:
            return None
        if not code.co_filename.startswith(_TORCH):
            inner = code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    members: Iterable[Any] = ()
    if isinstance(value, dict):
        members = value.values()
    elif isinstance(value, tuple | list):
        members = value
    return next((member for member in members if isinstance(member, torch.Tensor) and member.is_floating_point()), None)


_CHECKPOINT = torch.utils.checkpoint.__file__
_BACKWARD = torch.autograd.function.BackwardCFunction.apply.__code__
_ENGINE = torch.autograd.graph.__file__
_TORCH = torch.__file__.removesuffix("__init__.py")
