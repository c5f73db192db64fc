"""Records the modules of a forward pass with their inputs, outputs and gradients.

The modules have hooks only while the pass runs. In backward the hooks are on nodes of the graph, never on a module, so
that in-place operations after a module remain possible.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import torch

from ammeter.probes.origin.floats import Readings, inside, version
from ammeter.probes.origin.inputs import is_data, name_of
from ammeter.torch_hooks.forward_calls import hookable
from ammeter.torch_hooks.targets import plain_name

MAX_VISITS = 20_000
"""Visits, and also gradients, recorded in one step; it bounds memory with very many small modules."""

Guard = Callable[[Callable[..., None]], Callable[..., None]]


class Visit(msgspec.Struct):
    """One call of one module.

    Attributes:
        parent: index of the enclosing visit, -1 for the model itself.
        first: number of visits when the call began.
        last: number of visits when the call ended, -1 before that.
        inputs: indices of the tensors' statistics in Visits.readings, as in outputs and weights.
        data: (index, name) of the inputs that no model of the step made, only for the model itself.
        weights: (name, index) of the module's own parameters and buffers.
        buffers: names of its buffers.
        dtypes: dtypes of the outputs.
        op: autograd name of the operator that produced the first output with a graph.
    """

    module: str
    kind: str
    parent: int
    first: int
    last: int = -1
    inputs: list[int] = msgspec.field(default_factory=list)
    data: list[tuple[int, str]] = msgspec.field(default_factory=list)
    outputs: list[int] = msgspec.field(default_factory=list)
    weights: list[tuple[str, int]] = msgspec.field(default_factory=list)
    buffers: frozenset[str] = frozenset()
    dtypes: list[str] = msgspec.field(default_factory=list)
    op: str = ""


class Visits:
    """The visits of one step, over all micro-batches.

    Attributes:
        ended: indices of the visits in the order in which they ended.
        gradients: (index of a tensor, index of its gradient) in the order of backward.
    """

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.ended: list[int] = []
        self.gradients: list[tuple[int, int]] = []
        self.readings = Readings()
        self.closed = False
        self._open: list[tuple[int, int]] = []
        self._known: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}
        self._weights: dict[int, list[tuple[str, int]]] = {}
        self._hooked: set[int] = set()
        self._outputs: list[weakref.ref[torch.Tensor]] = []
        self._names: dict[int, str] = {}

    def enter(self, model: torch.nn.Module, prefix: str, guard: Guard) -> Iterator[Any]:
        """Registers hooks on the modules for one forward pass; the caller removes them after it."""
        self._on_gradient = guard(self._after_backward)
        began, ended = guard(self._began), guard(self._ended)
        for name, module in hookable(model):
            self._names[id(module)] = prefix + plain_name(name)
            yield module.register_forward_pre_hook(began, with_kwargs=True)
            yield module.register_forward_hook(ended, with_kwargs=True)

    def leave(self) -> None:
        """Ends the pass. Visits that an exception has interrupted remain unfinished."""
        self._open.clear()
        self._known.clear()

    def _began(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(self.visits) >= MAX_VISITS:
            return
        name = self._names.get(id(module), "")
        parent = self._open[-1][1] if self._open else -1
        visit = Visit(name, type(module).__name__, parent, len(self.visits))
        for _, tensor in inside((args, kwargs)):
            visit.inputs.append(self._index(tensor))
        if parent < 0:
            visit.data = self._data(module, args, kwargs)
        visit.weights = self._weights_of(module)
        visit.buffers = frozenset(module._buffers)
        self._open.append((id(module), len(self.visits)))
        self.visits.append(visit)

    def _data(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, str]]:
        made = {output.data_ptr() for ref in self._outputs if (output := ref()) is not None}
        named = [(name_of(module, position), value) for position, value in enumerate(args)] + [*kwargs.items()]
        tensors = ((f"{name}{path}", tensor) for name, value in named for path, tensor in inside(value))
        return [
            (self._index(tensor), name) for name, tensor in tensors if is_data(tensor) and tensor.data_ptr() not in made
        ]

    def _ended(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        while self._open and self._open[-1][0] != id(module):
            self._open.pop()
        if not self._open:
            return
        at = self._open.pop()[1]
        visit = self.visits[at]
        for _, tensor in inside(output):
            index = self._index(tensor)
            visit.outputs.append(index)
            visit.dtypes.append(str(tensor.dtype).removeprefix("torch."))
            visit.op = visit.op or (tensor.grad_fn.name() if tensor.grad_fn is not None else "")
            self._hook_backward(tensor, index)
            if visit.parent < 0:
                self._outputs.append(weakref.ref(tensor))
        visit.last = len(self.visits)
        self.ended.append(at)

    def _hook_backward(self, tensor: torch.Tensor, index: int) -> None:
        if tensor.grad_fn is not None and index not in self._hooked:
            self._hooked.add(index)
            number, on_gradient = tensor.output_nr, self._on_gradient
            tensor.grad_fn.register_prehook(lambda grads: on_gradient(index, grads[number]))

    def _after_backward(self, index: int, gradient: Any) -> None:
        if not self.closed and len(self.gradients) < MAX_VISITS:
            for _, tensor in inside(gradient):
                self.gradients.append((index, self.readings.add(tensor)))

    def _index(self, tensor: torch.Tensor) -> int:
        """The index of a tensor's statistics.

        An output of one module that is an input of the next is read once, unless it was changed in place.
        """
        ref, known, index = self._known.get(id(tensor), (None, -1, -1))
        if ref is None or ref() is not tensor or known != version(tensor) or known < 0:
            index = self.readings.add(tensor)
            self._known[id(tensor)] = weakref.ref(tensor), version(tensor), index
        return index

    def _weights_of(self, module: torch.nn.Module) -> list[tuple[str, int]]:
        if id(module) not in self._weights:
            own = (*module._parameters.items(), *module._buffers.items())
            read = ((name, tensor) for name, value in own for _, tensor in inside(value))
            self._weights[id(module)] = [(name, self._index(tensor)) for name, tensor in read]
        return self._weights[id(module)]
