"""Searches the operator whose backward pass makes a gradient NaN or infinite, in the step after such a step.

The nodes of the graph have hooks in that one step only. The first node that makes NaN or Inf from finite gradients runs
its backward pass again at once, while its saved tensors exist. Gradients on other devices are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.loss_stacks import line_of
from ammeter.probes.origin.floats import Numbers, measured
from ammeter.probes.origin.graph import gradient_trial, own_functions
from ammeter.probes.origin.graph import place as places
from ammeter.probes.origin.graph.nodes import Node, nodes_of
from ammeter.probes.origin.graph.reproducer import Reproducers
from ammeter.probes.origin.model_names import ModelNames
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site, patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

MAX_NAMED_STEPS = 3
"""Bad steps of a run in whose graph Functions of the program are searched: a search takes 5 µs per operator."""

MAX_ARMED_STEPS = 20
"""Steps of a run whose graphs have hooks: a scaler that calibrates its scale skips steps without a fault, too."""

Gradients = Sequence[torch.Tensor | None]


class GradientOrigin:
    """Leaves the origin of a step's first non-finite gradient in `row.raw["gradient_origin"]`."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._reproducers = Reproducers(session.journal.folder)
        self._handles: list[Any] = []
        self._hooks: list[Any] = []
        self._graph = places.Graph([])
        self._caller = ""
        self._bad: Row | None = None
        self._armed_steps = 0
        self._named_steps = 0
        self._is_removed = False
        self._stays_armed = False
        self._is_over = False
        """Whether the backward pass has made a NaN or an Inf, so that later nodes only pass it on."""

    def arm(self, guard: Callable[..., Any], row: Row) -> None:
        """Searches in the next backward pass, which must be that of the next step. The last rows of a run have none.

        Args:
            row: The step with bad gradients.
        """
        if not self._is_removed and not self._handles and self._armed_steps < MAX_ARMED_STEPS:
            self._armed_steps += 1
            self._session.fast_path.avoid(2)
            self._bad = row
            self._attach(guard)

    def arm_always(self, guard: Callable[..., Any]) -> None:
        """Searches in each backward pass, also after good steps, until arm_as_usual()."""
        if not self._is_removed:
            self._stays_armed = True
            self._attach(guard)

    def arm_as_usual(self) -> None:
        self._stays_armed = False
        self.disarm()

    def disarm(self) -> None:
        self._forget_graph()
        while self._handles and not self._stays_armed:
            self._handles.pop().remove()

    def _attach(self, guard: Callable[..., Any]) -> None:
        if not self._handles:
            self._guard = guard
            before, after = guard(self._before_backward), guard(self._after_backward)
            self._handles = [patch.backward(before=before, after=after)]

    def remove(self) -> None:
        self._is_removed = True
        self.arm_as_usual()

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        outputs = patch.outputs(args, kwargs)
        roots = outputs if isinstance(outputs, list | tuple) else (outputs,)
        if patch.inside_backward() or len(roots) != 1 or getattr(roots[0], "grad_fn", None) is None:
            return
        nodes = nodes_of(roots[0], reads=False)
        self._forget_graph()
        self._name_functions(nodes)
        if not _is_searched(roots[0]):
            return
        self._is_over, self._graph, self._caller = False, places.Graph(nodes), call_site.line()
        after = self._guard(self._after_node)
        inner = (at for at, node in enumerate(nodes) if node.parameter is None)
        self._hooks = [nodes[at].grad_fn.register_hook(_hook(after, at)) for at in inner]

    def _name_functions(self, nodes: list[Node]) -> None:
        """Reports the program's Functions between finite and bad gradients, once for a bad step."""
        row, self._bad = self._bad, None
        if row is None or self._named_steps >= MAX_NAMED_STEPS:
            return
        bad, known = row.raw.get("gradients_known", ((), ()))
        weights = {index: id(tensor) for index, tensor in self._session.watched.alive()}
        finite = {weights[index] for index in known if index in weights and index not in set(bad)}
        functions = own_functions.between(nodes, {weights[index] for index in bad if index in weights}, finite)
        if bad and finite and functions:
            self._named_steps += 1
            self._session.emit("origin.functions", {"bad_step": row.step, "functions": functions})

    def _after_backward(self, *_: Any) -> None:
        if not patch.inside_backward():
            self._forget_graph()

    def _forget_graph(self) -> None:
        """Removes the hooks, which keep the graph alive."""
        self._graph = places.Graph([])
        while self._hooks:
            self._hooks.pop().remove()

    def _after_node(self, at: int, made: Gradients, received: Gradients) -> None:
        if self._is_over:
            return
        read = unseen(lambda: next(filter(_is_bad, map(measured, made)), None), _given(made))
        if read is None:
            return
        self._is_over = True
        row = self._session.row
        numbers = [numbers for numbers in map(measured, received) if numbers is not None]
        if any(map(_is_bad, numbers)) or "gradient_origin" in row.raw:
            return
        node = self._graph.nodes[at]
        tried = unseen(lambda: gradient_trial.of_node(node.grad_fn, received, made), _given([*made, *received]))
        names = ModelNames(self._session)
        place = places.of_operator(self._graph, at, names.of_tensor, names.has_forward)
        row.raw["gradient_origin"] = {
            "kind": "backward",
            **place,
            "op": node.op,
            "direction": "backward",
            "dtype": next(str(gradient.dtype).removeprefix("torch.") for gradient in _given(made)),
            "absmax": max((number.absmax for number in numbers), default=None),
            "nans": int(read.nans),
            "infs": int(read.positive + read.negative),
            "sample": int(read.sample),
            "reason": "",
            "confidence": "graph",
            "line": line_of(node.grad_fn),
            "caller": self._caller,
        }
        if tried:
            row.raw["gradient_origin"] |= {"trial": tried.answer, "exact": tried.absmax, "device": "cpu"}
            row.raw["gradient_origin"] |= self._reproducers.write(row.step, node.op, tried)


def _hook(after: Callable[..., None], at: int) -> Callable[[Gradients, Gradients], None]:
    def hook(made: Gradients, received: Gradients) -> None:
        after(at, made, received)

    return hook


def _is_searched(root: Any) -> bool:
    """Whether a loss is on the host and finite."""
    return isinstance(root, torch.Tensor) and root.is_cpu and bool(torch.isfinite(root.detach()).all())


def _is_bad(numbers: Numbers | None) -> bool:
    return numbers is not None and numbers.bad


def _given(gradients: Gradients) -> list[torch.Tensor]:
    return [gradient for gradient in gradients if gradient is not None]
