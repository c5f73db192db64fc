"""Names the Functions of a program between the gradients that were finite and those that were not.

Backward hands a NaN on to every weight that an operator's input depends on. An operator can have made the NaN of a step
only if all weights with such a gradient are behind it and none with a finite one. Of these operators, torch's own are
tested by many; a Function that the program brings along is the first one to look at.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from ammeter.probes.origin.graph.nodes import Node
from ammeter.torch_hooks import call_site

MAX_FUNCTIONS = 3
"""Functions that are named; of more, none is worth to be looked at first."""


def between(nodes: Sequence[Node], bad: Collection[int], finite: Collection[int]) -> list[dict[str, str]]:
    """Returns name and line of the program's Functions that can have made the NaN, [] if there are too many.

    Args:
        nodes: The graph of a loss, inputs first.
        bad: ids of the weights with NaN or Inf in their gradient.
        finite: ids of those without.
    """
    bits = {weight: 1 << at for at, weight in enumerate(bad)}
    reached, touches_finite = [0] * len(nodes), [False] * len(nodes)
    found: dict[tuple[str, str], None] = {}
    for at, node in enumerate(nodes):
        behind = [place for place in node.inputs if place >= 0]
        for place in behind:
            reached[at] |= reached[place]
            touches_finite[at] |= touches_finite[place]
        if node.parameter is not None:
            reached[at] |= bits.get(id(node.parameter), 0)
            touches_finite[at] |= id(node.parameter) in finite
        if reached[at] == (1 << len(bits)) - 1 and not touches_finite[at] and _is_of_program(node.grad_fn):
            found[_name(node.grad_fn)] = None
    names = [{"name": name, "line": line} for name, line in found]
    return names if len(names) <= MAX_FUNCTIONS else []


def _is_of_program(grad_fn: Any) -> bool:
    """Whether it is a Function, and none of torch's own, such as that of checkpoint()."""
    if not isinstance(grad_fn, torch._C._FunctionBase):
        return False
    function = getattr(type(grad_fn), "_forward_cls", None)
    return function is not None and not str(function.__module__).startswith(("torch.", "ammeter."))


def _name(grad_fn: Any) -> tuple[str, str]:
    function: Any = type(grad_fn)._forward_cls
    code = getattr(function.backward, "__code__", None)
    return function.__name__, "" if code is None else call_site.written((code.co_filename, code.co_firstlineno))
