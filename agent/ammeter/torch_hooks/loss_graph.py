"""Reads the summands of a loss, and their divisors, from its autograd graph.

The relevant nodes are those above the criterion.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import unseen

MAX_NODES = 64
"""Maximum number of graph nodes that are visited above the criterion."""

MEAN, SUM, OPAQUE = "mean", "sum", "opaque"


class Part(NamedTuple):
    """A summand of a loss.

    Attributes:
        divisors: (number, whether it is a factor) of each division, the last one first.
        kind: how the criterion reduced its elements to one number.
        sizes, weight: shape and total weight of the elements that a sum reduced.
    """

    divisors: tuple[tuple[Transfer, bool], ...]
    kind: str
    sizes: tuple[int, ...] = ()
    weight: Transfer | None = None

    def transfers(self) -> list[Transfer]:
        """Returns the transfers that must arrive before the divisors and the weight are known."""
        transfers = [constant for constant, _ in self.divisors]
        return transfers if self.weight is None else [*transfers, self.weight]


PLAIN = (Part((), MEAN),)
"""The most frequent case: a mean over the batch without any node above it."""


def summands(root: Any) -> tuple[Part, ...]:
    """Returns the summands of a loss. Must be called before backward() frees the graph."""
    node = unseen(lambda: root.grad_fn, (root,)) if _modes() else root.grad_fn
    if node is None:
        return PLAIN
    kind = _KINDS.get(type(node)) or _kind_of(type(node))
    if kind is CRITERION and node._saved_reduction == 1:
        return PLAIN
    if kind is OWN or (kind is _AVERAGING and getattr(node, "_saved_self_sym_numel", 1) != 1):
        return PLAIN
    if kind is FACTOR and not _modes() and (quick := _divided_mean(node)):
        return quick
    parts = unseen(lambda: _visited(node), ()) if _modes() else _visited(node)
    return PLAIN if parts == PLAIN else parts


def _divided_mean(node: Any) -> tuple[Part, ...]:
    """Handles the common case of one quotient or product of a batch mean, else ()."""
    behind = node.next_functions[0][0]
    if behind is None or (len(node.next_functions) > 1 and node.next_functions[1][0] is not None):
        return ()
    kind = _KINDS.get(type(behind)) or _kind_of(type(behind))
    if kind is not OWN and not (kind is CRITERION and behind._saved_reduction == 1):
        return ()
    constant, factor = _constant(node)
    return () if constant is None else (Part(((constant, factor),), MEAN),)


def _visited(node: Any) -> tuple[Part, ...]:
    return tuple(_parts(node, (), [MAX_NODES]))


def _parts(node: Any, divisors: tuple[tuple[Transfer, bool], ...], nodes_left: list[int]) -> Iterator[Part]:
    while nodes_left[0] > 0:
        nodes_left[0] -= 1
        kind = _KINDS.get(type(node)) or _kind_of(type(node))
        inputs = [function for function, _ in node.next_functions if function is not None]
        if kind is FACTOR and len(inputs) == 1:
            constant, factor = _constant(node)
            if constant is None:
                if is_hooked(node, "_saved_other") or is_hooked(node, "_saved_self"):
                    yield Part(divisors, OPAQUE)
                    return
                break
            divisors = (*divisors, (constant, factor))
        elif kind is _SUMMED and len(inputs) > 1:
            for function in inputs:
                yield from _parts(function, divisors, nodes_left)
            return
        elif not (kind in (_THROUGH, _SUMMED) and len(inputs) == 1) and not _is_of_one(node, kind, inputs):
            yield _criterion(node, kind, divisors)
            return
        node = inputs[0]
    yield Part(divisors, MEAN if nodes_left[0] > 0 else OPAQUE)


def _criterion(node: Any, kind: str, divisors: tuple[tuple[Transfer, bool], ...]) -> Part:
    if kind is CRITERION and node._saved_reduction == 2:
        if is_hooked(node, "_saved_self") or is_hooked(node, "_saved_total_weight"):
            return Part(divisors, OPAQUE)
        weight = getattr(node, "_saved_total_weight", None)
        if weight is None or not divisors or weight.numel() != 1:
            return Part(divisors, SUM, tuple(node._saved_self.shape))
        return Part(divisors, SUM, tuple(node._saved_self.shape), async_copy.of(weight))
    if kind is _SUMMING:
        return Part(divisors, SUM, tuple(getattr(node, "_saved_self_sym_sizes", ())))
    return Part(divisors, OPAQUE if kind is UNKNOWN else MEAN)


def _constant(node: Any) -> tuple[Transfer | None, bool]:
    """Returns (other operand of a product or quotient, whether it is a factor)."""
    first = node.next_functions[0][0] is not None
    factor = type(node).__name__.startswith("Mul")
    name = "_saved_other" if first else "_saved_self" if factor else ""
    if not name or is_hooked(node, name):
        return None, factor
    operand = getattr(node, name)
    if isinstance(operand, int | float):
        return async_copy.number(float(operand)), factor
    if not isinstance(operand, torch.Tensor) or operand.numel() != 1 or operand.is_complex():
        return None, factor
    return async_copy.of(operand), factor


def constant_of(node: Any) -> float | None:
    """Returns the number by which a node multiplies or divides, if the host knows it."""
    if kind_of(node) is not FACTOR:
        return None
    constant, _ = _constant(node) if len([1 for function, _ in node.next_functions if function]) == 1 else (None, True)
    return constant.number() if constant is not None and constant.on_host else None


def kind_of(node: Any) -> str:
    """Returns what a node is for a loss, such as FACTOR or CRITERION."""
    return _KINDS.get(type(node)) or _kind_of(type(node))


def is_of_program(node: Any) -> bool:
    """Whether a node is a Function of the program."""
    return kind_of(node) is UNKNOWN


def is_hooked(node: Any, name: str) -> bool:
    """Whether reading a node's saved tensor would call a hook of the program.

    The hook of checkpoint() runs its whole block again, that of save_on_cpu() waits for a copy. Also True if the saved
    tensor is freed, in which case backward() will raise.
    """
    raw = getattr(node, f"_raw{name}", None)
    if raw is None:
        return False
    saved = raw if isinstance(raw, tuple) else (raw,)  # such as the indices of x[mask]
    if any(tensor.unpack_hook is not None for tensor in saved) if SAVED_TENSORS_EXPOSE_HOOKS else _hooks_seen:
        return True
    try:
        getattr(node, name)
    except RuntimeError:
        return True
    return False


def has_saved_hooks(node: Any) -> bool:
    """Whether running a node again would call hooks of the program for its saved tensors.

    Raises:
        RuntimeError: the saved tensors are freed.
    """
    saved: list[Any] = []
    for name in (name for name in dir(type(node)) if name.startswith("_raw_saved")):
        raw = getattr(node, name)
        saved += raw if isinstance(raw, tuple) else (raw,)
    if SAVED_TENSORS_EXPOSE_HOOKS:
        return any(tensor.unpack_hook is not None for tensor in saved)
    return bool(saved) and _hooks_seen


def mark_saved_hooks(*_: Any) -> None:
    """Marks that saved tensors may have hooks, for torch versions that do not expose them."""
    global _hooks_seen
    _hooks_seen = True


def _is_of_one(node: Any, kind: str, inputs: list[Any]) -> bool:
    """Whether the node is a mean or sum of one number, thus that number."""
    sizes = getattr(node, "_saved_self_sym_sizes", None) if kind in (_AVERAGING, _SUMMING) else None
    return sizes is not None and len(inputs) == 1 and math.prod(sizes) == 1


FACTOR, _SUMMED, _THROUGH = "factor", "summed", "through"

CRITERION, _AVERAGING, _SUMMING, OWN, UNKNOWN = "criterion", "averaging", "summing", "own", "unknown"

_FACTORS = ("Mul", "Div")

_SUMS = ("Add", "Sub")

_PASSING = (
    *("Neg", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Squeeze", "Unsqueeze", "Clone", "ToCopy", "Alias"),
    *("Select", "Expand", "AsStrided", "Permute", "T", "Copy", "Slice", "Index"),
)

_KINDS: dict[type, str] = {}

_NODE = re.compile(r"(\w+?)Backward\d+$")


def _kind_of(node: type) -> str:
    """Classifies a node of the autograd graph by the name that torch gives it."""
    match = _NODE.match(node.__name__)
    if match is None:  # a class of the program; not cached, because the program may create new ones all the time
        return UNKNOWN
    name = match[1]
    if name in _FACTORS:
        kind = FACTOR
    elif name in _SUMS:
        kind = _SUMMED
    elif name in _PASSING:
        kind = _THROUGH
    elif hasattr(node, "_saved_reduction"):
        kind = CRITERION
    elif name == "Mean":
        kind = _AVERAGING
    elif name in ("Sum", "Dot"):
        kind = _SUMMING
    else:
        kind = OWN
    _KINDS[node] = kind
    return kind


SAVED_TENSORS_EXPOSE_HOOKS = hasattr(torch._C._autograd.SavedTensor, "unpack_hook")
"""Whether this torch exposes the hooks of a saved tensor; older versions do not."""

_hooks_seen = False

_modes: Callable[[], int] = torch._C._len_torch_function_stack
