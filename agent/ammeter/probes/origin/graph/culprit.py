"""Finds the operator that made a loss non-finite, from the graph of the loss before backward() frees it.

It needs neither hooks nor a second forward pass, so it also finds an origin that exists in one step only. The numbers
of the graph are on the host, therefore this is done only for a loss on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ammeter.probes.loss_stacks import line_of
from ammeter.probes.origin.floats import Numbers, measured
from ammeter.probes.origin.graph import no_targets, trial
from ammeter.probes.origin.graph import place as places
from ammeter.probes.origin.graph.nodes import Node, nodes_of
from ammeter.probes.origin.graph.outputs import Outputs
from ammeter.probes.origin.graph.place import PASSING, Graph, Names
from ammeter.probes.origin.graph.trial import Trial

_SUMS = ("Add", "Sub", "Mean", "Sum", "Cat", "Stack", "ToCopy")
"""Operators that rarely make an Inf from finite inputs: an operator before them, which was not read, is likelier."""

SMALL_SUMMAND = 2.0**14
"""A quarter of float16's range: the other summand of a sum that is not finite is far beyond it, or not finite."""

_MASKS = ("MaskedFill", "Where", "LogSoftmax", "Add", "ToCopy", "CopySlices", *PASSING)
"""Operators whose output may have -Inf without a fault, as a mask or the logarithm of a probability of zero."""

_PRODUCTS = ("Mm", "Bmm")
_OPAQUE = "CompiledFunction"
"""The operator of torch.compile, which stands for many."""


def find_origin(root: torch.Tensor, name_of: Names, is_module: Callable[[str], bool]) -> dict[str, Any] | None:
    """Finds the first operator with finite inputs and a non-finite output.

    Args:
        root: the loss, before backward().
        name_of: the name of a watched parameter or of a buffer of the model; '' for another tensor.
        is_module: whether a path is a module with a forward() of its own.

    Returns:
        The data of an `origin.found` event, whether operands of the operator are `hidden`, and as `operator` what it
        did when it ran again; None if the graph does not show the origin.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        nodes = nodes_of(root)
        if not nodes:
            return None
        graph = _Graph(nodes, root)
        at = graph.culprit()
        return None if at is None else _described(graph, at, name_of, is_module)


class _Graph(Graph):
    """The operators of one loss and the numbers of their outputs.

    Attributes:
        numbers: the output of each operator, None if it is unknown.
    """

    def __init__(self, nodes: list[Node], root: torch.Tensor) -> None:
        super().__init__(nodes)
        self._outputs = Outputs(nodes, self.consumers)
        self.numbers = self._outputs.numbers
        self.numbers[-1] = measured(root)

    def culprit(self) -> int | None:
        bad = self._bad()
        reached = self._reached(bad)
        sources = [at for at in sorted(reached) if not any(bad[behind] for behind in self.inputs(at))]
        hidden = self._hidden()
        weight = next((source for source in sources if self.nodes[source].parameter is not None), None)
        if weight is not None:  # it also explains a NaN from outside of the graph, as in a detached result
            return weight
        if not sources or any(hidden[behind] for behind in self.inputs(sources[0])):
            return None
        without_targets = next((source for source in sources if self.has_no_targets(source)), None)
        if without_targets is not None:
            return without_targets
        at = self._likeliest(sources[0])
        return None if self.nodes[at].kind.startswith(_OPAQUE) else at

    def operands(self, at: int) -> Iterator[Numbers]:
        """The numbers of the inputs, as far as they are known; also of a batch, which no operator made.

        A mask or a view of a tensor has the numbers of that tensor.
        """
        for position, behind in enumerate(self.nodes[at].inputs):
            numbers = measured(self.nodes[at].operand_of_input(position))
            if numbers is None and behind >= 0:
                numbers = self.numbers[behind]
            if numbers is not None:
                yield numbers
            elif behind >= 0 and self.nodes[behind].kind in (*PASSING, "MaskedFill", "Where"):
                yield from self.operands(behind)

    def bad_constant(self, at: int) -> torch.Tensor | None:
        """An operand that no operator of the graph made and that is not finite."""
        node = self.nodes[at]
        for name, operand in node.operands.items():
            place = node.position(name)
            is_made = 0 <= place < len(node.inputs) and node.inputs[place] >= 0
            is_updated = name.startswith("running_") and node.operands.get("training")  # and not read
            if isinstance(operand, torch.Tensor) and not is_made and not is_updated:
                numbers = measured(operand)
                if numbers is not None and numbers.bad and not numbers.masked:
                    return operand
        return None

    def is_gradient(self, at: int) -> bool:
        """Whether an output is a gradient in the loss: an operator of a recorded backward pass made or received it.

        An operand of a matrix product that is infinite everywhere is no data and no mask, but a scaled gradient.
        """
        if self.nodes[at].kind in _PRODUCTS and any(
            numbers is not None and numbers.infinite for numbers in map(measured, self.nodes[at].operands.values())
        ):
            return True
        waiting, seen = [at], {at}
        for place in waiting:
            if self.nodes[place].is_gradient:
                return True
            uses = [use for use in self.consumers[place] if not self.nodes[use[0]].is_gradient or use[1] == 0]
            fresh = [consumer for consumer in dict.fromkeys(consumer for consumer, _ in uses) if consumer not in seen]
            seen.update(fresh)
            waiting += fresh
        return False

    def adds_bad_constant(self, at: int) -> bool:
        """Whether a sum is not finite although its summands in the graph are, and a further one is outside of it."""
        node = self.nodes[at]
        known = [self.numbers[behind] for behind in self.inputs(at)]
        return (
            node.kind in ("Add", "Sub")
            and len(known) == len(node.inputs) - 1 == 1
            and known[0] is not None
            and not known[0].bad
            and known[0].absmax < SMALL_SUMMAND
        )

    def made_inside(self, at: int) -> bool:
        """Whether an operator made a NaN or Inf from inputs that were all read and finite."""
        node = self.nodes[at]
        return bool(node.inputs) and all(
            _is_finite(self.numbers[behind] if behind >= 0 else _of_operand(node, position))
            for position, behind in enumerate(node.inputs)
        )

    def trial(self, at: int) -> Trial | None:
        """Runs an operator again, if its operands are known."""
        node = self.nodes[at]
        inputs = [self._outputs.deduced(behind) if behind >= 0 else None for behind in node.inputs]
        return trial.of_operator(node, inputs, self.numbers[at])

    def has_no_targets(self, at: int) -> bool:
        """Whether an operator is a mean of a criterion over no targets."""
        if no_targets.is_mean_over_none(self.nodes[at]):
            return True
        root = self.numbers[-1]
        return root is not None and root.nans > 0 and no_targets.is_quotient_of_none(self.nodes, at)

    def _bad(self) -> list[bool]:
        """Whether each output is not finite. Of an unknown one, whether an operand is not."""
        bad: list[bool] = []
        for at, numbers in enumerate(self.numbers):
            if at == len(self.nodes) - 1:
                bad.append(True)
            elif numbers is None:
                bad.append(any(bad[behind] for behind in self.inputs(at)) or self.bad_constant(at) is not None)
            else:
                bad.append(numbers.bad and not (numbers.masked and self.nodes[at].kind in _MASKS))
        return bad

    def _hidden(self) -> list[bool]:
        """Whether each output is unknown because operands before it could not be read."""
        hidden: list[bool] = []
        for at, numbers in enumerate(self.numbers):
            is_unknown = numbers is None and self.nodes[at].parameter is None
            hidden.append(
                is_unknown and (self.nodes[at].is_hidden or any(hidden[behind] for behind in self.inputs(at)))
            )
        return hidden

    def _reached(self, bad: Sequence[bool]) -> set[int]:
        """The operators that lead to the loss through non-finite outputs only."""
        reached, waiting = {len(bad) - 1}, [len(bad) - 1]
        while waiting:
            for behind in self.inputs(waiting.pop()):
                if bad[behind] and behind not in reached:
                    reached.add(behind)
                    waiting.append(behind)
        return reached

    def _likeliest(self, at: int) -> int:
        """Goes back from an operator that passes numbers on to the unread one that made them."""
        while self.nodes[at].kind in (*PASSING, *_SUMS):
            unread = [behind for behind in self.inputs(at) if self.numbers[behind] is None]
            if len(unread) != 1:
                break
            (at,) = unread
        return at


def _described(graph: _Graph, at: int, name_of: Names, is_module: Callable[[str], bool]) -> dict[str, Any]:
    node, numbers = graph.nodes[at], graph.numbers[at]
    constant = graph.bad_constant(at)
    buffer = "" if constant is None else name_of(constant)
    leaf = node.parameter if node.parameter is not None else constant if buffer else None
    if graph.is_gradient(at):
        place: dict[str, Any] = {"kind": "gradient", "module": ""}
    elif leaf is not None:
        name = name_of(leaf)
        place = {"kind": "weights", "module": name.rpartition(".")[0], "tensor": name}
        place |= {"buffer": True} if buffer else {}
    else:
        place = {"kind": "forward"} | places.of_operator(graph, at, name_of, is_module)
    inputs = list(graph.operands(at))
    reason = _reason(graph, at)
    tried = graph.trial(at) if place["kind"] == "forward" and reason in ("", "range") else None
    if tried:
        reason = "range" if tried.answer == trial.RANGE else ""
    count = {} if numbers is None or reason == "targets" else _counts(node, numbers)
    return (
        place
        | count
        | {
            "op": node.op,
            "direction": "forward",
            "dtype": node.dtype,
            "absmax": max((read.absmax for read in inputs), default=None),
            "reason": reason,
            "confidence": "graph",
            "hidden": node.is_hidden,
            "made_inside": place["kind"] == "forward" and not reason and graph.made_inside(at),
            "line": line_of(node.grad_fn),
        }
        | ({"trial": tried.answer, "exact": tried.absmax, "device": "cpu", "operator": tried} if tried else {})
    )


def _is_finite(numbers: Numbers | None) -> bool:
    return numbers is not None and not numbers.bad


def _of_operand(node: Node, position: int) -> Numbers | None:
    """The numbers of an operand that no operator of the graph made, which may be a number."""
    for name, operand in node.operands.items():
        if node.position(name) == position and isinstance(operand, int | float | torch.Tensor):
            return measured(
                torch.as_tensor(operand, dtype=None if isinstance(operand, torch.Tensor) else torch.float64)
            )
    return None


def _counts(node: Node, numbers: Numbers) -> dict[str, Any]:
    """The numbers of NaN and Inf; the -Inf of a logarithm of probabilities is none."""
    infs = int(numbers.positive + (0 if node.kind == "LogSoftmax" else numbers.negative))
    return {"nans": int(numbers.nans), "infs": infs, "sample": int(numbers.sample)}


def _reason(graph: _Graph, at: int) -> str:
    """The reason, if it is known: `constant`, `targets` (a mean over none), `row` (of zeros by its sum) or `range`."""
    node = graph.nodes[at]
    if graph.bad_constant(at) is not None or graph.adds_bad_constant(at):
        return "constant"
    if graph.has_no_targets(at):
        return "targets"
    if node.kind != "Div" or "other" not in node.operands:
        return ""
    if node.dtype != "float64" and bool((torch.as_tensor(node.operands["other"]) != 0).all()):
        return "range"
    if len(node.inputs) < 2 or node.inputs[1] < 0:
        return ""
    divisor = graph.nodes[node.inputs[1]]
    return "row" if divisor.kind == "Sum" and divisor.inputs[:1] == node.inputs[:1] else ""
