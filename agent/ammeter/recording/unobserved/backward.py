"""Finds backward passes that bypass torch.autograd.backward, by the gradients that they leave.

An optimizer that steps on new gradients without a backward() before it proves such passes. From then on, the autograd
nodes of scaled losses and of the models' outputs call back when a backward pass reaches them. The graph of a loss
without a scaler is freed by then down to the model's output; its value is still known.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import Variable, graph

from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import patch, replay
from ammeter.torch_hooks.closures import version

if TYPE_CHECKING:
    from ammeter.recording.context import Guard
    from ammeter.recording.session import Session

MIN_MISSED = 2
"""Steps in a row on new gradients without backward(). A single one may have begun before watch()."""

MAX_TRIALS = 8
"""Steps in which the nodes find no backward pass, as with gradients that the program assigns; then the search ends."""

MAX_OUTPUTS = 8
"""Tensors of a model's output whose nodes call back."""


class UnobservedBackward:
    """The backward passes of a session that no patch observes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._gradients: weakref.WeakKeyDictionary[torch.optim.Optimizer, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._missed = self._trials = 0
        self._handles: list[Any] = []
        self._is_observed = False
        self._task = -1

    def attach(self, guard: Guard) -> list[Any]:
        self._guard = guard
        return [self]

    def remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    def begins(self) -> None:
        """Records that the patch observes a backward pass."""
        self._is_observed, self._missed = True, 0

    def ends(self) -> None:
        self._is_observed = False

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Examines the gradients of an optimizer that steps without an observed backward pass."""
        if _queue_callback is None or self._trials > MAX_TRIALS or self._session.watched.by_several_threads:
            return
        gradient = _gradient(optimizer)
        if gradient is None or self._gradients.get(optimizer) == gradient:
            return
        self._gradients[optimizer] = gradient
        self._missed += 1
        self._session.fast_path.avoid(MIN_MISSED)
        if self._handles:
            self._trials += 1
            if self._trials > MAX_TRIALS:
                self.remove()
        elif self._missed >= MIN_MISSED:
            self._search()

    def _search(self) -> None:
        """Subscribes to the calls that return the roots and the inner nodes of the next graphs."""
        session = self._session
        self._handles = [
            session.forward.subscribe(after=self._guard(self._after_forward)),
            *patch.methods(session.watched.scaler_kinds, "scale", after=self._guard(self._after_scale)),
        ]

    def _after_forward(self, model: torch.nn.Module, _: Any, __: Any, output: Any) -> None:
        if output is not patch.RAISED and model.training:
            self._follow(output)

    def _after_scale(self, args: tuple[Any, ...], _: dict[str, Any], result: Any) -> None:
        self._follow(result)

    def _follow(self, output: Any) -> None:
        """Registers a hook that runs when a backward pass reaches these tensors; it changes no gradient."""
        for number, tensor in enumerate(tensors_in(output)):
            node: Any = unseen(lambda: tensor.grad_fn, (tensor,))  # noqa: B023 - called at once
            if node is not None and number < MAX_OUTPUTS:
                node.register_prehook(self._guard(partial(self._reached, weakref.ref(tensor))))

    def _reached(self, ref: Callable[[], torch.Tensor | None], _: Any) -> None:
        """Replays the callbacks before backward(), once per backward pass, and queues those after it."""
        task = patch.graph_task()
        if self._is_observed or task == self._task:
            return
        call = _engine_call()
        if call is not None and call.get("kwargs", {}).get("accumulate_grad") is False:  # torch.autograd.grad()
            return
        self._task, self._trials, self._missed = task, 0, 0
        outputs = ref() if call is None else call["t_outputs"]
        outputs = outputs[0] if isinstance(outputs, tuple) and len(outputs) == 1 else outputs
        self._session.fast_path.avoid(MIN_MISSED)
        self._replay(outputs, is_over=False)
        self._is_observed = False
        _queue(self._guard(partial(_queue, self._guard(partial(self._replay, outputs, is_over=True)))))

    def _replay(self, outputs: Any, *, is_over: bool) -> None:
        replay.backward(outputs, is_over=is_over)


def _queue(call: Callable[[], None]) -> None:
    """Runs a function at the end of this backward pass, after the functions that are queued by then.

    DDP queues one that awaits the reduction of the gradients, so a function that reads them is queued twice.
    """
    if _queue_callback is not None:
        _queue_callback(call)


def tensors_in(output: Any, depth: int = 3) -> Iterator[torch.Tensor]:
    """Yields the tensors in nested lists, tuples and dictionaries."""
    if isinstance(output, torch.Tensor):
        yield output
    elif depth and isinstance(output, dict | list | tuple):
        for part in output.values() if isinstance(output, dict) else output:
            yield from tensors_in(part, depth - 1)


def _gradient(optimizer: torch.optim.Optimizer) -> tuple[int, int] | None:
    """Identity and version of the optimizer's first gradient."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                return id(parameter.grad), version(parameter.grad)
    return None


def _engine_call() -> dict[str, Any] | None:
    """Returns the arguments of torch's own call of the autograd engine, if this thread runs it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _ENGINE_CALL:
        frame = frame.f_back
    return None if frame is None else dict(frame.f_locals)


_queue_callback: Callable[[Callable[[], None]], None] | None
_queue_callback = getattr(getattr(Variable, "_execution_engine", None), "queue_callback", None)

_ENGINE_CALL: CodeType | None = getattr(getattr(graph, "_engine_run_backward", None), "__code__", None)
"""Newer versions of torch have one function that calls the engine."""
