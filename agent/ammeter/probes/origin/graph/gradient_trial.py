"""Runs the backward pass of one operator again, to tell its numbers from its kernels.

It runs twice as it was. The first of torch's operators in it that makes NaN or Inf from finite inputs runs once more in
float64. None of the results reaches the program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from ammeter.probes.origin.floats import Numbers, measured
from ammeter.probes.origin.graph.trial import (
    DIFFERS,
    KERNEL,
    MAX_ELEMENTS,
    RANGE,
    ROUNDED,
    UNDEFINED,
    UNSTEADY,
    Formulas,
    Trial,
    is_near_range,
)
from ammeter.torch_hooks import loss_graph

_REFUSED = ("AccumulateGrad", "CopySlices", "CompiledFunction")
"""Nodes that change something when they run: a gradient, a view's base, or the memory that a compiled region reuses."""

_CONSTANTS = ("empty", "full", "fill", "masked_fill", "where", "new_", "resize", "scalar_tensor")
"""Beginnings of operators whose NaN or Inf is memory that nothing has written yet, or a number that they were given."""

_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError)
"""What an operator raises that cannot run again: freed memory, operands in dtypes that it does not support."""

Gradients = Sequence[torch.Tensor | None]


def of_node(node: Any, received: Gradients, made: Gradients) -> Trial | None:
    """Runs the backward pass of an operator again, while its saved tensors exist.

    Args:
        node: the node of the graph, after it has made NaN or Inf.
        received: the finite gradients that it received.
        made: the gradients that it made, with the shapes and dtypes of the operator's inputs.

    Returns:
        None if it cannot run again, or if the results decide nothing.
    """
    tensors = [gradient for gradient in received if gradient is not None]
    if not _is_fit(node, tensors):
        return None
    is_own = isinstance(node, torch._C._FunctionBase)
    try:
        if loss_graph.has_saved_hooks(node):
            return None
        with torch.no_grad(), torch.autocast("cpu", enabled=False):
            runs = [_OwnRun(node, received, made) if is_own else _Run(node, received, made) for _ in range(2)]
            bad = [_is_bad(run.outputs) for run in runs]
            if not all(bad):
                return Trial(node.name(), {}, DIFFERS if any(bad) else UNSTEADY)
            return None if is_own else _of_call(node, received, made, runs[0].culprit)
    except _ERRORS:
        return None


def _is_fit(node: Any, received: Sequence[torch.Tensor]) -> bool:
    name = node.name().rpartition("::")[2]
    if name.startswith(_REFUSED) or not received or not all(tensor.is_cpu for tensor in received):
        return False
    is_shared = torch.distributed.is_available() and torch.distributed.is_initialized()
    may_wait = isinstance(node, torch._C._FunctionBase) and is_shared  # for other ranks
    return not may_wait and sum(map(torch.Tensor.numel, received)) <= MAX_ELEMENTS


class Call(NamedTuple):
    """A call of one of torch's operators, and the dtype of its first result."""

    function: Any
    args: Any
    kwargs: Mapping[str, Any]
    dtype: torch.dtype = torch.float64

    def tensors(self) -> Iterator[torch.Tensor]:
        return _floating((self.args, self.kwargs))


class _Run(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """One run of a node's backward pass.

    Attributes:
        outputs: the gradients that it made.
        culprit: the first of torch's operators with finite inputs and an output that is not finite.
    """

    def __init__(self, node: Any, received: Gradients, made: Gradients) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.culprit: Call | None = None
        with self:
            outputs = self._run(node, received)
            self.outputs = _as_made(outputs, made)

    def _run(self, node: Any, received: Gradients) -> Any:
        return node(*received)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(function, args, kwargs or {})
        if self.culprit is None and function._schema.is_mutable:  # its inputs as they are now
            call = Call(function, *tree_map(_copy, (args, kwargs or {})))
        result = function(*args, **(kwargs or {}))
        name = function._schema.name.removeprefix("aten::")
        if self.culprit is None and not name.startswith(_CONSTANTS) and _is_bad(result):
            dtype = next(_floating(result)).dtype
            self.culprit = None if _is_bad(tuple(call.tensors())) else call._replace(dtype=dtype)
        return result


class _OwnRun(_Run):  # type: ignore[no-untyped-call]
    """One run of a torch.autograd.Function of the program, which must not change what exists already."""

    def __init__(self, node: Any, received: Gradients, made: Gradients) -> None:
        self._made = set[int]()
        before, generator = dict(vars(node)), torch.get_rng_state()
        try:
            super().__init__(node, received, made)
        finally:
            torch.set_rng_state(generator)
            vars(node).clear()
            vars(node).update(before)

    def _run(self, node: Any, received: Gradients) -> Any:
        return node.apply(*received)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_memory(tensor) for tensor in _tensors((args, kwargs))}
        if function._schema.is_mutable and not given & self._made:
            raise RuntimeError("it changes a tensor in place")
        result = function(*args, **(kwargs or {}))
        self._made |= {_memory(tensor) for tensor in _tensors(result)} - given
        return result


def _as_made(outputs: Any, made: Gradients) -> list[torch.Tensor | None]:
    """The gradients as torch passes them on: summed to the shapes of the operator's inputs, and in their dtypes."""
    pairs = zip(outputs if isinstance(outputs, tuple) else (outputs,), made, strict=False)
    return [
        None if output is None or given is None else output.sum_to_size(given.shape).to(given.dtype)
        for output, given in pairs
    ]


def _of_call(node: Any, received: Gradients, made: Gradients, call: Call | None) -> Trial | None:
    """What the first operator with NaN or Inf does in float64."""
    if call is None:
        return None
    largest = torch.finfo(call.dtype).max
    exact = _numbers(_in_float64(call))
    if exact is None:
        return None
    expression, operands = _written(call)
    if exact.bad:
        exact = _numbers(_Float64(node, received, made).outputs)
        if exact is None or exact.bad:
            return Trial(node.name(), operands, UNDEFINED, None, expression)
        answer = ROUNDED if exact.absmax <= largest else RANGE
        return Trial(node.name(), operands, answer, exact.absmax, expression)
    if exact.absmax > largest:
        return Trial(node.name(), operands, RANGE, exact.absmax, expression)
    if is_near_range(exact.absmax, largest, operands):
        return None
    return Trial(node.name(), operands, KERNEL, exact.absmax, expression)


def _in_float64(call: Call) -> Any:
    """The results of an operator in float64, by torch's formula for it where its kernel has no finite ones."""
    double = Call(call.function, *tree_map(as_double, (call.args, dict(call.kwargs))))
    result = double.function(*double.args, **double.kwargs)
    if not _is_bad(result):
        return result
    formula = _OWN_FORMULAS.get(double.function, double.function)
    with Formulas():  # type: ignore[no-untyped-call]
        return formula(*double.args, **double.kwargs)


def _attention_gradients(
    gradient: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    _: torch.Tensor,
    dropout: float,
    is_causal: bool,
    *,
    attn_mask: torch.Tensor | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, ...]:
    """The gradients of attention, for which torch has no formula."""
    if dropout:
        raise ArithmeticError("dropout has other masks when it runs again")
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * factor
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    weights = torch.softmax(scores, -1)
    inner = weights * (gradient @ value.mT - (gradient * output).sum(-1, keepdim=True)) * factor
    return inner @ key, inner.mT @ query, weights.mT @ gradient


_OWN_FORMULAS = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_gradients}
"""Operators without a formula in torch -> a function with their arguments."""


class _Float64(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A node's backward pass, each of torch's operators in float64."""

    def __init__(self, node: Any, received: Gradients, made: Gradients) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        with self:
            self.outputs = _as_made(node(*tree_map(as_double, tuple(received))), made)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.is_mutable and any(tensor.dtype != torch.float64 for tensor in _floating(args[:1])):
            raise RuntimeError("a copy in float64 would be changed")
        args, kwargs = tree_map(as_double, (args, kwargs or {}))
        return function(*args, **kwargs)


def as_double(value: Any) -> Any:
    """A tensor or a dtype of real numbers in float64, anything else as it is."""
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _written(call: Call) -> tuple[str, dict[str, Any]]:
    """The call as an expression, and the tensors and dtypes in it by name."""
    leaves, layout = tree_flatten((call.args, dict(call.kwargs)))
    operands: dict[str, Any] = {}
    named = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor | torch.dtype):
            operands[f"x{len(operands)}"] = leaf
            named.append(_Written(f"x{len(operands) - 1}"))
        else:
            named.append(_Written(_literal(leaf)))
    args, kwargs = tree_unflatten(named, layout)
    given = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"torch.ops.{call.function}({', '.join(given)})", operands


class _Written:
    """A text that is its own repr(), inside of lists, too."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _literal(value: Any) -> str:
    if isinstance(value, float):
        return f"float('{value}')"
    return f"torch.device('{value}')" if isinstance(value, torch.device) else repr(value)


def _numbers(outputs: Any) -> Numbers | None:
    """The numbers of all outputs together; None if there is none."""
    read = [numbers for numbers in map(measured, _floating(outputs)) if numbers is not None]
    if not read:
        return None
    absmax, nans, positive, negative, _ = zip(*read, strict=True)
    return Numbers(max(absmax), sum(nans), sum(positive), sum(negative), -1)


def _is_bad(outputs: Any) -> bool:
    return any(numbers is not None and numbers.bad for numbers in map(measured, _floating(outputs)))


def _floating(values: Any) -> Iterator[torch.Tensor]:
    return (tensor for tensor in _tensors(values) if tensor.is_floating_point())


def _tensors(values: Any) -> Iterable[torch.Tensor]:
    return (leaf for leaf in tree_flatten(values)[0] if isinstance(leaf, torch.Tensor))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
