"""Records the calls of sensitive operators in one forward and backward pass, with their operands and places."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode

from ammeter.preflight.stress import operators, samples
from ammeter.preflight.stress.operators import Operator
from ammeter.torch_hooks import call_site


class Place(NamedTuple):
    """Where calls are: the operator, its kernel, the module with `*` for numbers, and the line of the program."""

    operator: str
    kernel: str
    module: str
    line: str


@dataclass
class Call:
    """The call with the largest operand at a place.

    Attributes:
        function: the kernel.
        args, kwargs: its operands, of which a sample is kept.
        calls: calls at this place.
        dtypes: those of its main operand.
        absmax: largest finite number of its main operand.
        untried: why it cannot be stressed, empty if it can.
    """

    operator: Operator
    function: Any
    backward: bool
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 0
    dtypes: set[torch.dtype] = field(default_factory=set)
    absmax: float = -1.0
    untried: str = ""


Calls = dict[Place, Call]


@contextmanager
def recorded(model: torch.nn.Module, *, operands: bool = True) -> Iterator[Calls]:
    """Fills the returned dict with the calls inside the context.

    Args:
        operands: whether to keep operands; otherwise only dtypes are recorded.
    """
    names = {id(module): name for name, module in model.named_modules()}
    open_modules: list[str] = []

    def enter(module: torch.nn.Module, _: Any) -> None:
        open_modules.append(names.get(id(module)) or (open_modules[-1] if open_modules else _outermost(module, names)))

    def leave(*_: Any) -> None:
        open_modules.pop()

    handles = [
        hooks.register_module_forward_pre_hook(enter),
        hooks.register_module_forward_hook(leave, always_call=True),
    ]
    recorder = _Recorder(open_modules, operands=operands)
    try:
        with recorder:
            yield recorder.calls
    finally:
        for handle in handles:
            handle.remove()


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every kernel that runs, also those inside torch's own modules, after autocast has chosen their dtypes."""

    def __init__(self, open_modules: list[str], *, operands: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Calls = {}
        self._open_modules, self._operands = open_modules, operands
        self._places: dict[int, tuple[str, str]] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._record(function, args, kwargs)
        return function(*args, **kwargs)

    def _record(self, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        node: Any = torch._C._current_autograd_node()
        backward = node is not None
        kernel = _kernel(function)
        operator = operators.of_call(kernel, args, backward=backward)
        if node is not None and operator is not None:
            module, line = self._places.get(node._sequence_nr(), ("", ""))
        elif node is None:
            module, line = self._here()
        if operator is None or not (module or line):  # Ammeter's own loss has no place
            return
        name = f"{operator.name} backward" if backward and not operator.name.endswith("backward") else operator.name
        place = Place(name, kernel, _pattern(module), line)
        call = self.calls.setdefault(place, Call(operator, function, backward))
        call.calls += 1
        call.dtypes.add(args[operator.main].dtype)
        if self._operands:
            _keep(call, function, args, kwargs)

    def _here(self) -> tuple[str, str]:
        """The place of the forward pass; the autograd node of the kernel that runs here has the last number."""
        place = self._open_modules[-1] if self._open_modules else "", call_site.line()
        self._places[torch._C._autograd._get_sequence_nr() - 1] = place
        return place


def _kernel(function: Any) -> str:
    name: str = function._overloadpacket.__name__
    return name.rstrip("_")


def _keep(call: Call, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Keeps the operands of the call whose main operand is the largest."""
    largest = samples.absmax(args[call.operator.main])
    if largest <= call.absmax and not call.untried:
        return
    call.absmax = max(largest, call.absmax)
    kept, call.untried = samples.of_call(call.operator, args, kwargs)
    if kept is not None:
        call.function, (call.args, call.kwargs) = function, kept


def _outermost(module: torch.nn.Module, names: Mapping[int, str]) -> str:
    """The name of a module that no other one calls: empty for the model, the class for a criterion."""
    return "" if id(module) in names else type(module).__name__


def _pattern(module: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", module)
