"""What came out of scale(): marked in the graph, so that whatever is derived from it is recognised at backward()."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from ammeter.tensors.hidden_reads import unseen

FAR = 256
"""Nodes looked at before a root counts as not derived from anything scaled. Only roots that are not marked pay."""

NEAR = 8
"""Nodes between scale() and backward() that are nothing to look at closely."""

_SUMS = ("AddBackward", "SubBackward", "StackBackward", "CatBackward")
"""Nodes of which each input carries its own part of the loss."""


class Mark(NamedTuple):
    """Which scaler, after how many of its updates, and in which step of the run."""

    scaler: int
    updates: int
    step: int


class Origin(NamedTuple):
    """marks: what a root of backward() was scaled by. raw: whether a part of it came out of no scale()."""

    marks: tuple[Mark, ...]
    raw: bool


UNKNOWN = Origin((), False)


class Marks:
    """One key per run: two runs in one process do not take each other's marks for theirs."""

    def __init__(self) -> None:
        self._key = f"ammeter.scaled.{id(self)}"

    def put(self, outputs: Any, mark: Mark) -> bool:
        """Marks what scale() returned. False when it cannot be: an iterator would be used up by looking at it."""
        if isinstance(outputs, torch.Tensor):
            node = _node(outputs)
            if node is not None:
                node.metadata[self._key] = mark
            return True
        if isinstance(outputs, list | tuple):
            marked = [self.put(each, mark) for each in outputs]
            return all(marked)
        return False

    def direct(self, root: torch.Tensor) -> Mark | None:
        """The mark of what scale() returned itself."""
        node = _node(root)
        return None if node is None else node.metadata.get(self._key)

    def near(self, root: torch.Tensor) -> bool:
        """Whether a root is what scale() returned, at most divided or reshaped since."""
        node = _node(root)
        for _ in range(NEAR):
            if node is None or self._key in node.metadata:
                return node is not None
            inputs = _inputs(node)
            node = inputs[0] if len(inputs) == 1 else None
        return False

    def origin(self, root: torch.Tensor) -> Origin:
        """Where the parts of a root come from. Also after backward(), while the root is there."""
        node = _node(root)
        if node is None:
            return UNKNOWN
        parts = [self._behind(part) for part in self._parts(node)]
        return Origin(tuple(frozenset().union(*parts)), not all(parts))

    def _parts(self, node: Any) -> list[Any]:
        """The parts of a sum, through whatever only scales or reshapes it."""
        found: list[Any] = []
        left = deque([node])
        for _ in range(FAR):
            if not left:
                return found
            each = left.popleft()
            inputs = _inputs(each)
            if self._key not in each.metadata and (len(inputs) == 1 or each.name().startswith(_SUMS)) and inputs:
                left.extend(inputs)
            else:
                found.append(each)
        return [node]

    def _behind(self, node: Any) -> frozenset[Mark]:
        found = set()
        for each in nodes(node, FAR, until=self._key):
            mark = each.metadata.get(self._key)
            if mark is not None:
                found.add(mark)
        return frozenset(found)


def dtypes(root: torch.Tensor, most: int) -> set[torch.dtype]:
    """Floating-point dtypes of what the gradients of a root flow through, as far as `most` nodes show."""
    node = _node(root)
    if node is None:
        return set()
    found = (each.dtype for at in nodes(node, most) for each in getattr(at, "_input_metadata", ()))
    return {each for each in found if each.is_floating_point}


def nodes(start: Any, most: int, until: str = "") -> Iterator[Any]:
    """The graph behind a node, itself first, breadth first; not behind nodes whose metadata has `until`."""
    left, seen = deque([start]), {start}
    while left and len(seen) <= most:
        each = left.popleft()
        yield each
        if until not in each.metadata:
            fresh = [other for other in _inputs(each) if other not in seen]
            seen.update(fresh)
            left.extend(fresh)


def roots(given: Any) -> list[torch.Tensor]:
    """The tensors that backward() is called on. What is no tensor, such as an edge of the graph, is left out."""
    several: Iterable[Any] = (given,) if isinstance(given, torch.Tensor) else given
    return [each for each in several if isinstance(each, torch.Tensor)] if isinstance(several, list | tuple) else []


def _inputs(node: Any) -> list[Any]:
    return [each for each, _ in node.next_functions if each is not None]


def _node(tensor: torch.Tensor) -> Any:
    return unseen(lambda: tensor.grad_fn, (tensor,)) if _modes() else tensor.grad_fn


_modes: Callable[[], int] = torch._C._len_torch_function_stack
