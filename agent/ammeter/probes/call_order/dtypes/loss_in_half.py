"""Finds losses that are computed in half precision, and the line of their last operator.

A loss is judged by its own dtype, and by the dtypes behind nodes that only scale or cast it. A loss that is piecewise
linear in outputs of the network, such as a hinge loss or the loss of a Wasserstein GAN, loses nothing: its gradients
are constants. A loss in float32 is judged by the log-probabilities that it is computed from, as in reinforcement
learning and distillation. The line is searched after a loss in half precision was seen: between the forward pass and
backward(), torch stores the stack of each node.
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
_ELEMENTWISE = (
    *_LINEAR,
    *("Exp", "Log", "Pow", "Sqrt", "Min", "Max", "Where", "MaskedFill", "Gather", "Index", "IndexSelect", "LogSigmoid"),
    *("Sigmoid", "Softplus", "NllLoss", "Amin", "Amax", "Logsumexp", "Expm1", "MaskedSelect", "Take"),
)
"""Operators that a loss computes from log-probabilities."""

_LOG_PROBABILITIES = "LogSoftmax"

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
        if node is not None and is_linear(node):
            node = None
        elif node is None:
            node = unseen(lambda: half_log_probabilities(losses[0]), ())
        if node is None:
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
        if node is None or _is_half(node):
            return _origin(node)
        node = _scaled(node)
    return None


def half_log_probabilities(loss: torch.Tensor) -> Any:
    """The log_softmax in half precision from whose output a scalar loss in float32 is computed, else None."""
    waiting = [loss.grad_fn] if loss.numel() == 1 and loss.grad_fn is not None else []
    seen = set(waiting)
    while waiting and len(seen) <= MAX_LINEAR_NODES:
        node = waiting.pop()
        name = _plain(node)
        if name == _LOG_PROBABILITIES and _is_half(node):
            return node
        if name in _ELEMENTWISE:
            inputs = [other for other, _ in node.next_functions if other is not None and other not in seen]
            waiting += inputs
            seen.update(inputs)
    return None


def is_linear(root: Any) -> bool:
    """Whether a loss is piecewise linear in half precision outputs of matrix multiplications."""
    waiting, seen = [root], {root}
    while waiting:
        node = waiting.pop()
        inputs = [other for other, _ in node.next_functions if other is not None]
        name = _plain(node)
        if name in _NETWORK and node is not root:
            continue
        is_product = name in ("Mul", "Div") and len(inputs) > 1
        if name not in _LINEAR or is_product or not _is_half(node) or not inputs or len(seen) > MAX_LINEAR_NODES:
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


def _is_half(node: Any) -> bool:
    return _dtype_of(node) in ("float16", "bfloat16")


def _operator(node: Any) -> str:
    name = _plain(node)
    return {"ToCopy": "to", _LOG_PROBABILITIES: "log_softmax"}.get(name, name.lower())


def _plain(node: Any) -> str:
    return str(node.name()).rstrip("0123456789").removesuffix("Backward")
