"""Finds forward passes that use autocast's copies of weights from before an optimizer's step.

Autocast casts a float32 weight once, and keeps the copy until its outermost context ends. A step inside of that context
changes the weight and not the copy. torch numbers the nodes of the autograd graph as it creates them: a product that is
newer than a step, of a cast that is older, used an old copy. Its numbers are then compared with the weight.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ammeter.probes.call_order.marks import nodes
from ammeter.probes.call_order.usage_events import is_power_of_two
from ammeter.tensors import async_copy
from ammeter.tensors.async_copy import Transfer
from ammeter.tensors.hidden_reads import has_numbers, unseen
from ammeter.torch_hooks import call_site, loss_graph, optimizer_steps

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MIN_STALE_STEPS = 2
"""Steps whose forward pass used an old copy. A single one may be a trial of the program."""

MAX_UNPLACED_STEPS = 8
"""The same, if the line that entered the context is still unknown: it was entered once, before all steps."""

MAX_SEARCHES = 64
"""Losses in a row that are searched for old copies; then each whose number is a power of two."""

MAX_NODES = 4096
"""Nodes of a loss that are searched."""

MAX_STEPS = 256
"""Latest steps inside autocast that are kept, to count those since a copy was made."""

MAX_TENSORS = 8
"""Weights of a loss that are compared with their copies."""

MAX_NUMBERS = 1 << 16
"""Numbers of a weight that are compared, so that an embedding of a large vocabulary costs little."""

MAX_NAMED_TENSORS = 3
"""Weights that an event names."""

_OPERANDS = {
    "AddmmBackward0": {1: "_saved_mat1", 2: "_saved_mat2"},
    "MmBackward0": {0: "_saved_self", 1: "_saved_mat2"},
    "LinearBackward0": {1: "_saved_weight"},
    "ConvolutionBackward0": {1: "_saved_weight"},
}
"""Nodes of products: input of the node -> the tensor that it saves of it."""


class Step(NamedTuple):
    """A step of a watched optimizer inside autocast.

    Attributes:
        number: the number that torch gives to the next node after it.
        optimizer: its id.
        context: the line that entered the outermost context, or ''.
    """

    number: int
    optimizer: int
    call: str
    spot: call_site.Spot | None
    context: str


class Use(NamedTuple):
    """A product of an old copy.

    Attributes:
        steps: the steps since the copy was made and before the product, the latest one last.
        is_turned: whether the product has the copy transposed.
    """

    weight: torch.Tensor
    copy: torch.Tensor
    is_turned: bool
    steps: list[Step]


class Comparison(NamedTuple):
    """The comparison of a loss's old copies with the weights, whose result may arrive later."""

    step: int
    uses: list[tuple[str, Step, int]]
    compared: int
    changed: Transfer
    device: str
    dtype: str


class StaleCasts:
    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._steps: deque[Step] = deque(maxlen=MAX_STEPS)
        self._pending: list[Comparison] = []
        self._first_step, self._last_step, self._found = -1, -1, 0
        self._searches = 0
        self.is_done = False

    @property
    def is_due(self) -> bool:
        """Whether a loss may have used old copies."""
        return bool(self._steps) and not self.is_done

    @property
    def is_suspected(self) -> bool:
        """Whether a loss has used old copies, and it is not reported yet."""
        return self._found > 0 and not self.is_done

    def after_step(self, optimizer: torch.optim.Optimizer, context: str) -> None:
        """Notes a step inside autocast."""
        if self.is_done or optimizer_steps.is_replayed() or self._session.watched.by_several_threads:
            return
        call = f"{type(optimizer).__name__}.step()"
        self._steps.append(Step(_next_number(), id(optimizer), call, call_site.spot(), context))

    def before_backward(self, losses: Iterable[torch.Tensor]) -> dict[str, Any] | None:
        """Searches a loss for old copies.

        Returns:
            The data of an event, once it is certain.
        """
        self._searches += 1
        if self._searches <= MAX_SEARCHES or is_power_of_two(self._searches):
            unseen(lambda: self._search(losses), ())
        return self._result()

    def _search(self, losses: Iterable[torch.Tensor]) -> None:
        uses: list[Use] = []
        owners = {
            id(parameter): id(optimizer)
            for optimizer in self._session.watched.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        for loss in losses:
            if loss.grad_fn is not None and loss.grad_fn._sequence_nr() >= self._steps[0].number:
                uses += self._uses(loss.grad_fn, owners, MAX_TENSORS - len(uses))
        if uses:
            self._compare(uses)

    def _uses(self, root: Any, owners: dict[int, int], limit: int) -> Iterator[Use]:
        for node in nodes(root, MAX_NODES):
            for position, name in _OPERANDS.get(type(node).__name__, {}).items():
                if limit <= 0:
                    return
                use = self._use(node, position, name, owners)
                if use is not None:
                    limit -= 1
                    yield use

    def _use(self, node: Any, position: int, name: str, owners: dict[int, int]) -> Use | None:
        behind = node.next_functions[position][0]
        is_turned = type(behind).__name__ == "TBackward0"
        cast = behind.next_functions[0][0] if is_turned else behind
        if type(cast).__name__ != "ToCopyBackward0":
            return None
        weight = getattr(cast.next_functions[0][0], "variable", None)
        owner = owners.get(id(weight))
        begin, end = cast._sequence_nr(), node._sequence_nr()
        steps = [step for step in self._steps if begin < step.number <= end and step.optimizer == owner]
        if not steps or weight is None or not has_numbers(weight) or loss_graph.is_hooked(node, name):
            return None
        copy = getattr(node, name)
        if copy is None:  # a product saves no weight if its other operand needs no gradient
            return None
        shape = tuple(reversed(weight.shape)) if is_turned else tuple(weight.shape)
        return Use(weight, copy, is_turned, steps) if has_numbers(copy) and tuple(copy.shape) == shape else None

    def _compare(self, uses: list[Use]) -> None:
        device = uses[0].weight.device
        uses = [use for use in uses if use.weight.device == device]
        compared = [_changed(use) for use in uses]
        known = {
            id(tensor): self._session.watched.tensors[index].name for index, tensor in self._session.watched.alive()
        }
        self._pending.append(
            Comparison(
                self._session.row.step,
                [(known.get(id(use.weight), ""), use.steps[-1], len(use.steps)) for use in uses],
                sum(count for _, count in compared),
                async_copy.of(torch.stack([changed for changed, _ in compared]).sum()),
                device.type,
                str(uses[0].copy.dtype).removeprefix("torch."),
            )
        )

    def _result(self) -> dict[str, Any] | None:
        while self._pending and self._pending[0].changed.ready():
            comparison = self._pending.pop(0)
            changed = int(comparison.changed.number())
            if not changed or comparison.step == self._last_step:
                continue
            if not self._found:
                self._first_step = comparison.step
            self._found, self._last_step = self._found + 1, comparison.step
            data = self._data(comparison, changed)
            if self._found >= (MIN_STALE_STEPS if data["caller"] != data["line"] else MAX_UNPLACED_STEPS):
                self.is_done = True
                self._pending = []
                return data
        return None

    def _data(self, comparison: Comparison, changed: int) -> dict[str, Any]:
        _, step, age = max(comparison.uses, key=lambda use: use[2])
        line = call_site.written(step.spot)
        return {
            "caller": step.context or line,
            "call": step.call,
            "line": line,
            "device": comparison.device,
            "dtype": comparison.dtype,
            "first_step": self._first_step,
            "stale_step": comparison.step,
            "stale_updates": age,
            "stale_numbers": changed,
            "compared_numbers": comparison.compared,
            "tensors": [name for name, _, _ in comparison.uses if name][:MAX_NAMED_TENSORS],
        }


def _changed(use: Use) -> tuple[torch.Tensor, int]:
    """Returns how many numbers of a copy are not those of the weight, and the number of those compared."""
    weight, copy = use.weight.detach(), use.copy.detach()
    copy = copy.t() if use.is_turned else copy
    if weight.dim() and weight.numel() > MAX_NUMBERS:
        rows = max(1, MAX_NUMBERS * len(weight) // weight.numel())
        weight, copy = weight[:rows], copy[:rows]
    different = (weight.to(copy.dtype) != copy) & (copy == copy)  # a NaN is not old
    return different.sum(dtype=torch.float32), weight.numel()


_next_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


def depth() -> int:
    """Returns the number of autocast contexts that are open, disabled ones too."""
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth
