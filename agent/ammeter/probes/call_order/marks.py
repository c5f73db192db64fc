"""Marks the results of scale() in the graph, to recognise derived tensors at backward()."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from ammeter.tensors.hidden_reads import unseen

MAX_SEARCH_NODES = 256
"""Nodes searched before a root counts as not scaled. Only roots without a mark have the cost of this search."""

MAX_NEAR_NODES = 8
"""Nodes between scale() and backward(), such as a division or a reshape, that cause no closer check."""

_SUMS = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
"""Nodes whose inputs are separate parts of the loss."""


class Mark(NamedTuple):
    """One call of scale().

    Attributes:
        scaler: id of the scaler.
        updates: number of its updates before the call.
        step: step of the run.
    """

    scaler: int
    updates: int
    step: int


class Origin(NamedTuple):
    """The origin of the roots of backward().

    Attributes:
        marks: the scale() calls that they come from.
        raw: whether a part of them comes from no scale().
    """

    marks: tuple[Mark, ...]
    raw: bool


UNKNOWN = Origin((), False)


class Marks:
    """The marks of one run. Each run has its own key, so two runs in one process do not mix their marks."""

    def __init__(self) -> None:
        self._key = f"ammeter.scaled.{id(self)}"

    def put(self, outputs: Any, mark: Mark) -> bool:
        """Marks the outputs of scale().

        Returns:
            False for outputs that cannot be marked, such as an iterator, which reading would consume.
        """
        if isinstance(outputs, torch.Tensor):
            node = _node(outputs)
            if node is not None:
                node.metadata[self._key] = mark
            return True
        if isinstance(outputs, list | tuple):
            marked = [self.put(output, mark) for output in outputs]
            return all(marked)
        return False

    def direct(self, root: torch.Tensor) -> Mark | None:
        """The mark of a root that is itself a result of scale(), else None."""
        node = _node(root)
        return None if node is None else node.metadata.get(self._key)

    def near(self, root: torch.Tensor) -> bool:
        """Whether a root is a result of scale(), possibly divided or reshaped since."""
        node = _node(root)
        for _ in range(MAX_NEAR_NODES):
            if node is None or self._key in node.metadata:
                return node is not None
            inputs = _inputs(node)
            node = inputs[0] if len(inputs) == 1 else None
        return False

    def origin(self, root: torch.Tensor) -> Origin:
        """The origin of the parts of a root. It also works after backward(), while the root exists."""
        node = _node(root)
        if node is None:
            return UNKNOWN
        parts = [self._behind(part) for part in self._parts(node)]
        return Origin(tuple(frozenset().union(*parts)), not all(parts))

    def _parts(self, node: Any) -> list[Any]:
        """The summands of a root, found through nodes that only scale or reshape it."""
        parts: list[Any] = []
        queue = deque([node])
        for _ in range(MAX_SEARCH_NODES):
            if not queue:
                return parts
            current = queue.popleft()
            inputs = _inputs(current)
            if self._key not in current.metadata and (len(inputs) == 1 or current.name().startswith(_SUMS)) and inputs:
                queue.extend(inputs)
            else:
                parts.append(current)
        return [node]

    def _behind(self, node: Any) -> frozenset[Mark]:
        marks = set()
        for ancestor in nodes(node, MAX_SEARCH_NODES, until=self._key):
            mark = ancestor.metadata.get(self._key)
            if mark is not None:
                marks.add(mark)
        return frozenset(marks)


def dtypes(root: torch.Tensor, max_nodes: int) -> set[torch.dtype]:
    """Floating-point dtypes in the graph of a root, in at most about `max_nodes` nodes."""
    node = _node(root)
    if node is None:
        return set()
    inputs = (metadata for at in nodes(node, max_nodes) for metadata in getattr(at, "_input_metadata", ()))
    return {metadata.dtype for metadata in inputs if metadata.dtype.is_floating_point}


def nodes(start: Any, max_nodes: int, until: str = "") -> Iterator[Any]:
    """Yields a node and the graph behind it, breadth first.

    Args:
        max_nodes: nodes after which the search ends.
        until: metadata key; the search does not continue behind a node that has it.
    """
    queue, seen = deque([start]), {start}
    while queue and len(seen) <= max_nodes:
        node = queue.popleft()
        yield node
        if until not in node.metadata:
            unvisited = [other for other in _inputs(node) if other not in seen]
            seen.update(unvisited)
            queue.extend(unvisited)


def roots(tensors: Any) -> list[torch.Tensor]:
    """The tensors that backward() is called on; other roots, such as edges, are omitted."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [root for root in tensors if isinstance(root, torch.Tensor)] if isinstance(tensors, list | tuple) else []


def _inputs(node: Any) -> list[Any]:
    return [ancestor for ancestor, _ in node.next_functions if ancestor is not None]


def _node(tensor: torch.Tensor) -> Any:
    return unseen(lambda: tensor.grad_fn, (tensor,)) if _modes() else tensor.grad_fn


_modes: Callable[[], int] = torch._C._len_torch_function_stack


def backward_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """(roots of a backward() call, whether the caller gave it gradients to start with)."""
    own = args[1] if len(args) > 1 else kwargs.get("grad_tensors")
    return args[0] if args else kwargs.get("tensors"), has_gradient(own)


def has_gradient(gradients: Any) -> bool:
    """Whether the caller of backward() gave it any gradient."""
    return (
        any(gradient is not None for gradient in gradients)
        if isinstance(gradients, list | tuple)
        else gradients is not None
    )
