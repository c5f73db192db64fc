"""Finds parameters whose gradient an autograd.Function of the program does not return.

Such a Function gets the parameter and returns None for it, without an error: the parameter is in the graph of the loss
and keeps its initial value. The graph is searched behind the backward() of two early steps, and only if a trained
parameter has no gradient. A parameter that changes between the two is trained in another way, such as from a buffer of
the Function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from ammeter.probes.call_order.marks import nodes, roots
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.closures import version

CHECKS = (3, 8)
"""Steps of an optimizer with gradients that are examined; what is missing must be found at both."""

MAX_NODES = 4096
"""Nodes behind a loss that are searched."""

MAX_CASTS = 3
"""Casts and views between a parameter and the Function, such as those of autocast."""

ELSEWHERE = ("main_grad", "grad_added_to_main_grad")
"""Attributes of parameters whose gradients a Function adds to a buffer of its own, as Megatron's fused kernels do."""

SAMPLED_NUMBERS = 8
"""Numbers of a parameter that are compared from step to step while no gradient exists."""

Dropped = dict[int, tuple[str, str]]
"""id of a parameter -> the Function that returned no gradient for it, and the line of its backward()."""


class DroppedGradients:
    """The search behind backward(), for the optimizers that are at one of the CHECKS.

    Attributes:
        found: what the last backward() of such a step has left without a gradient.
    """

    def __init__(self) -> None:
        self.found: Dropped = {}
        self._due: list[torch.optim.Optimizer] = []
        self._before: dict[int, dict[int, tuple[float, ...]]] = {}

    def attach(self, guard: Any) -> list[Any]:
        return [patch.backward(after=guard(self._after_backward))]

    def after_step(self, optimizer: torch.optim.Optimizer, steps: int) -> list[tuple[str, str, list[int]]]:
        """Compares the searches of the two steps.

        Args:
            steps: steps of the optimizer with gradients.

        Returns:
            Function, line and parameters, for Functions that returned no gradient at both.
        """
        due = steps + 1 in CHECKS
        self._due = [other for other in self._due if other is not optimizer] + ([optimizer] if due else [])
        if steps not in CHECKS:
            return []
        found, self.found = self.found, {} if not self._due else self.found
        parameters = [parameter for parameter in parameters_of(optimizer) if id(parameter) in found]
        present = unseen(lambda: {id(parameter): _state(parameter) for parameter in parameters}, parameters)
        before, self._before[id(optimizer)] = self._before.pop(id(optimizer), {}), present
        kept = [key for key, state in present.items() if before.get(key) == state]
        functions = sorted({found[key] for key in kept})
        return [(*function, [key for key in kept if found[key] == function]) for function in functions]

    def _after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        if self._due and not patch.inside_backward():
            self.found = unseen(lambda: self._search(roots(patch.outputs(args, kwargs))), ())

    def _search(self, losses: Iterable[torch.Tensor]) -> Dropped:
        parameters = (parameter for optimizer in self._due for parameter in parameters_of(optimizer))
        empty = {id(parameter) for parameter in parameters if _is_without(parameter)}
        if not empty:
            return {}
        found: Dropped = {}
        for node in (node for loss in losses if loss.grad_fn is not None for node in nodes(loss.grad_fn, MAX_NODES)):
            function = _own_function(node)
            if function is None:
                continue
            for leaf in _leaves(node):
                if id(leaf) in empty:
                    found[id(leaf)] = function.__name__, _line_of(function.backward)
        return found


def parameters_of(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def numbers_of(tensors: Iterable[torch.Tensor]) -> list[float]:
    """Returns some numbers of the tensors that are on the host."""
    chosen = [tensor for tensor in tensors if tensor.is_cpu and has_numbers(tensor)]
    return [number for tensor in chosen for number in tensor.detach().reshape(-1)[:SAMPLED_NUMBERS].tolist()]


def _state(parameter: torch.Tensor) -> tuple[float, ...]:
    """What changes with a parameter; its numbers too, because a change through `.data` changes no version."""
    return version(parameter), *numbers_of([parameter])


def _is_without(parameter: torch.Tensor) -> bool:
    """Whether a trained parameter has no gradient, and no hook or kernel that puts it elsewhere."""
    return (
        parameter.requires_grad
        and parameter.grad is None
        and not getattr(parameter, "_post_accumulate_grad_hooks", None)
        and not any(hasattr(parameter, name) for name in ELSEWHERE)
    )


def _own_function(node: Any) -> Any:
    """The autograd.Function of a node, None for torch's own nodes and Functions."""
    function = getattr(type(node), "_forward_cls", None)
    return None if function is None or str(function.__module__).partition(".")[0] == "torch" else function


def _leaves(node: Any) -> Iterator[torch.Tensor]:
    """The leaves that a node gets directly, or through a few casts and views."""
    for behind, _ in node.next_functions:
        for _ in range(MAX_CASTS):
            if behind is None or hasattr(behind, "variable") or len(behind.next_functions) != 1:
                break
            behind = behind.next_functions[0][0]
        variable = getattr(behind, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable


def _line_of(function: Callable[..., Any]) -> str:
    code = getattr(function, "__code__", None)
    return "" if code is None else call_site.written((code.co_filename, code.co_firstlineno))
