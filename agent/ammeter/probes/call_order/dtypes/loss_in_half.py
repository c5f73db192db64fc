"""Finds losses that are computed in half precision, and the line of their last operator.

A loss is judged by its own dtype, and by the dtypes behind nodes that only scale or cast it. A loss that is piecewise
linear in outputs of the network, such as a hinge loss or the loss of a Wasserstein GAN, loses nothing: its gradients
are constants. The line is searched after
a loss in half precision was seen: between the forward pass and backward(), torch stores the stack of each node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.marks import roots
from ammeter.probes.call_order.usage_events import UsageEvents, is_check_due
from ammeter.probes.loss_stacks import LossStacks, line_of
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

HALF = (torch.float16, torch.bfloat16)

MIN_LOSSES = 3
"""Losses in half precision in a row. A single one may be a trial of the program."""

MAX_TRACED_LOSSES = 6
"""Losses in half precision whose line is searched; a loss computed inside the model has none."""

MAX_NODES = 16
"""Nodes that scale or cast a loss which are followed."""

_SCALES = ("MulBackward", "DivBackward", "NegBackward", "ToCopyBackward", "CloneBackward")
"""Nodes of one input that does not change its precision."""

MAX_LINEAR_NODES = 64
"""Nodes between a loss and the network that are examined for being linear."""

_LINEAR = (
    *("Mean", "Sum", "Add", "Sub", "Rsub", "Neg", "Mul", "Div", "Relu", "LeakyRelu", "Threshold", "Clamp", "Abs"),
    *("Maximum", "Minimum", "ToCopy", "Clone", "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "Select"),
    *("Slice", "Expand", "Permute", "Transpose", "T", "Stack", "Cat", "Split", "Unbind", "Alias"),
)
_NETWORK = ("Addmm", "Mm", "Linear", "MkldnnLinear", "Bmm", "Convolution", "MkldnnConvolution", "Addbmm", "Baddbmm")
"""Operators of a piecewise linear loss, and those that end the network before it."""


class LossInHalf:
    def __init__(self, session: ProbeContext, events: UsageEvents) -> None:
        self._session = session
        self._events = events
        self._losses = self._in_half = 0
        self._first = self._step = -1
        self._is_done = False
        self._stacks = LossStacks(session)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        handles = [
            patch.backward(before=guard(self._before_backward)),
            patch.function(torch.autograd, "grad", before=guard(self._before_grad)),
        ]
        return [self, *self._session.fast_path.pauses(handles)]

    def remove(self) -> None:
        """Ends the search for the line."""
        self._stacks.end()

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._is_done and not patch.inside_backward():
            self.sample(patch.outputs(args, kwargs))

    def _before_grad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Samples a loss whose gradients of watched parameters are asked for."""
        inputs = roots(args[1] if len(args) > 1 else kwargs.get("inputs"))
        if not self._is_done and inputs and self._session.watched.knows(inputs[0]) and not patch.inside_backward():
            self.sample(args[0] if args else kwargs.get("outputs"))

    def sample(self, outputs: Any) -> None:
        """Judges the first loss of a step, before it is scaled."""
        step = self._session.row.step
        if self._is_done or step == self._step:
            return
        self._step, self._losses = step, self._losses + 1
        losses = roots(outputs)
        if len(losses) != 1 or not (losses[0].dtype in HALF or self._in_half or is_check_due(self._losses)):
            return
        node = unseen(lambda: half_node(losses[0]), ())
        if node is None or is_linear(node):
            self._in_half = 0
            self.remove()
            return
        self._first = self._first if self._in_half else step
        self._in_half += 1
        line = line_of(node)
        if self._in_half >= MIN_LOSSES and (line or self._in_half >= MAX_TRACED_LOSSES):
            self._report(node, line)
        else:
            self._stacks.begin(self._guard, MAX_TRACED_LOSSES)

    def _report(self, node: Any, line: str) -> None:
        self._is_done = True
        self.remove()
        data: dict[str, Any] = {"dtype": _dtype_of(node), "operator": _operator(node), "computed": bool(line)}
        self._events.emit_once("usage.loss_in_half", line=line, **data, first_step=self._first)


def half_node(loss: torch.Tensor) -> Any:
    """The node that computed a scalar loss in half precision, behind nodes that only scale or cast it; else None."""
    node = loss.grad_fn if loss.numel() == 1 else None
    for _ in range(MAX_NODES):
        if node is None or _dtype_of(node) in ("float16", "bfloat16"):
            return _origin(node)
        node = _scaled(node)
    return None


def is_linear(root: Any) -> bool:
    """Whether a loss is piecewise linear in half precision outputs of matrix multiplications."""
    waiting, seen = [root], {root}
    while waiting:
        node = waiting.pop()
        inputs = [other for other, _ in node.next_functions if other is not None]
        name = str(node.name()).rstrip("0123456789").removesuffix("Backward")
        if name in _NETWORK and node is not root:
            continue
        is_product = name in ("Mul", "Div") and len(inputs) > 1
        is_half = _dtype_of(node) in ("float16", "bfloat16")
        if name not in _LINEAR or is_product or not is_half or not inputs or len(seen) > MAX_LINEAR_NODES:
            return False
        waiting += [other for other in inputs if other not in seen]
        seen.update(inputs)
    return True


def _origin(node: Any) -> Any:
    """The first node in half precision behind a node that scales a loss in half precision."""
    while node is not None and (behind := _scaled(node)) is not None and _dtype_of(behind) == _dtype_of(node):
        node = behind
    return node


def _scaled(node: Any) -> Any:
    """The only input of a node that scales or casts a number, else None."""
    inputs = [other for other, _ in node.next_functions if other is not None]
    if len(inputs) != 1 or not node.name().startswith(_SCALES):
        return None
    return inputs[0] if all(len(metadata.shape) == 0 for metadata in _metadata(inputs[0])) else None


def _dtype_of(node: Any) -> str:
    return str(next((metadata.dtype for metadata in _metadata(node)), "")).removeprefix("torch.")


def _metadata(node: Any) -> Any:
    return getattr(node, "_input_metadata", ())


def _operator(node: Any) -> str:
    name = str(node.name()).rstrip("0123456789").removesuffix("Backward").lower()
    return "to" if name == "tocopy" else name
