"""Reads the outputs of forward passes that evaluate the model, for NaN.

A pass evaluates if the model is in eval mode or no gradients are recorded. The passes between two steps are one
evaluation. After NaN, hooks on the modules of later passes find its origin, and one output in training shows whether
the model has NaN there by design.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from ammeter.probes.origin import culprit
from ammeter.probes.origin.floats import inside
from ammeter.probes.origin.visits import Visits
from ammeter.tensors import async_copy
from ammeter.tensors.hidden_reads import unseen
from ammeter.torch_hooks import call_site
from ammeter.torch_hooks.forward_calls import RAISED, innermost, is_compiled
from ammeter.torch_hooks.hook_points import AtEnd

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

MIN_READ_PASSES = 2
"""Passes of an evaluation that are read in any case; further ones as far as the budget allows."""

MAX_READ_PASSES = 256
"""Passes of an evaluation that are read, because their results wait in memory."""

MAX_TENSORS = 8
"""Tensors of an output that are read."""

MAX_ELEMENTS = 2**16
"""Elements of a tensor that are read. A pass with NaN has it in whole samples, so every n-th element of the last
dimension suffices."""

MAX_HOOKED_PASSES = 4
"""Passes with hooks in one evaluation. The next batch may have no NaN."""

MAX_HOOKED_EVALUATIONS = 3
"""Evaluations in a row with hooks, for one series of evaluations with NaN."""

MIN_WAKE_STEPS = 20
"""Steps on the fast path between two evaluations that end it. A step without it costs a short one several percent."""

REPEAT_STEPS = 100
"""Steps after which the same NaN is reported again."""


class _Pass(msgspec.Struct):
    """The output of one pass.

    Attributes:
        paths: (path, number of dimensions) of each tensor that was read.
        largest: the largest element of each; NaN if the tensor has NaN.
    """

    paths: list[tuple[str, int]]
    largest: list[async_copy.Transfer]
    dtypes: list[str]
    place: call_site.Place
    about: dict[str, Any]

    def bad(self) -> dict[tuple[str, int], tuple[str, float]]:
        """Returns tensor -> (dtype, number) of those with NaN, and of a loss that is not finite."""
        numbers = [float(value.number()) for value in self.largest]
        read = zip(self.paths, self.dtypes, numbers, strict=True)
        return {
            path: (dtype, number)
            for path, dtype, number in read
            if math.isnan(number) or (not path[1] and not math.isfinite(number))
        }


class _Evaluation(msgspec.Struct):
    """The passes between two steps."""

    step: int
    began: float
    passes: int = 0
    spent: float = 0.0
    hooked: int = 0
    read: list[_Pass] = msgspec.field(default_factory=list)
    visits: list[Visits] = msgspec.field(default_factory=list)
    sent: list[async_copy.Transfer] = msgspec.field(default_factory=list)
    """Of the visits."""
    trained: _Pass | None = None
    """The first output in training mode after it."""

    def transfers(self) -> list[async_copy.Transfer]:
        read = (*self.read, self.trained) if self.trained else self.read
        return [*self.sent, *(value for one in read for value in one.largest)]

    def is_known_bad(self) -> bool:
        """Whether an output that has arrived has NaN."""
        return any(all(value.ready() for value in one.largest) and one.bad() for one in self.read)


class Evaluation:
    name = "evaluation"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._open: _Evaluation | None = None
        self._hooks: list[Any] = []
        self._next_wake = 0
        self._was_bad: bool | None = None
        """None before an evaluation was read."""
        self._hooked_evaluations = 0
        self._origin: dict[str, Any] | None = None
        self._reported_step = -REPEAT_STEPS

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        handles = [self._session.forward.subscribe(evaluates=guard(self._begins), after=guard(self._ends))]
        self._session.forward.on_evaluation = guard(self._wakes)
        return [self, AtEnd(guard(self._close)), *self._session.fast_path.pauses(handles)]

    def remove(self) -> None:
        """Removes the hooks from the modules."""
        while self._hooks:
            self._hooks.pop().remove()

    def finish(self, row: Row) -> None:
        evaluation: _Evaluation | None = row.raw.get("evaluation")
        if evaluation is not None:
            self._conclude(evaluation, row.events)

    def _wakes(self) -> None:
        """Leaves the fast path, on which no forward pass is observed."""
        step = self._session.row.step
        if step >= self._next_wake:
            self._next_wake = step + MIN_WAKE_STEPS
            self._session.fast_path.leave()

    def _begins(self, module: torch.nn.Module, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        evaluation = self._open
        if evaluation is not None and evaluation.step != self._session.last_step:
            self._close()
            evaluation = None
        if evaluation is None:
            evaluation = self._open = _Evaluation(self._session.last_step, perf_counter())
        evaluation.passes += 1
        if self._needs_hooks(evaluation) and not is_compiled(module):
            visits = Visits()
            evaluation.visits.append(visits)
            evaluation.hooked += 1
            self._hooks += visits.enter(innermost(module), self._session.forward.prefix(innermost(module)), self._guard)

    def _needs_hooks(self, evaluation: _Evaluation) -> bool:
        if self._origin or evaluation.hooked >= MAX_HOOKED_PASSES:
            return False
        if self._hooked_evaluations >= MAX_HOOKED_EVALUATIONS:
            return False
        return bool(self._was_bad) or evaluation.is_known_bad()

    def _ends(self, module: torch.nn.Module, _: tuple[Any, ...], __: dict[str, Any], output: Any) -> None:
        self.remove()
        evaluation = self._open
        if evaluation is None:
            return
        if module.training and torch.is_grad_enabled():
            self._trains(evaluation, module, output)
            return
        if evaluation.visits:
            evaluation.visits[-1].leave()
            evaluation.sent += evaluation.visits[-1].readings.send()
        if output is not RAISED and self._reads(evaluation):
            began = perf_counter()
            evaluation.read.append(self._read(module, output))
            evaluation.spent += perf_counter() - began
            if evaluation.is_known_bad():
                self._session.fast_path.avoid()  # the output of the next step in training is read

    def _reads(self, evaluation: _Evaluation) -> bool:
        """Whether this pass is read: the first ones, then as many as the budget allows."""
        count = len(evaluation.read)
        if count < MIN_READ_PASSES:
            return True
        passed = perf_counter() - evaluation.began
        return (
            count < MAX_READ_PASSES and evaluation.spent * (count + 1) <= self._session.governor.budget * passed * count
        )

    def _trains(self, evaluation: _Evaluation, module: torch.nn.Module, output: Any) -> None:
        """Ends an evaluation with the first output in training mode, which is read if the others may have NaN."""
        row, self._open = self._session.row, None
        if output is not RAISED and not self._is_clean(evaluation):
            evaluation.trained = self._read(module, output)
        for transfer in evaluation.transfers():
            row.wait_for(transfer)
        row.raw["evaluation"] = evaluation
        row.urgent = row.urgent or evaluation.is_known_bad()  # the buffers are read when it is written

    def _is_clean(self, evaluation: _Evaluation) -> bool:
        return all(all(value.ready() for value in one.largest) and not one.bad() for one in evaluation.read)

    def _read(self, module: torch.nn.Module, output: Any) -> _Pass:
        tensors = [(path, tensor) for path, tensor in inside(output) if tensor.dim() or _may_be_loss(path)]
        tensors = tensors[:MAX_TENSORS]
        with torch.no_grad():
            largest = [async_copy.of(unseen(lambda: _largest(tensor), (tensor,))) for _, tensor in tensors]  # noqa: B023 - called at once
        weight = next(module.parameters(), None)
        device = weight.device.type if weight is not None else "cpu"
        about = {
            "weights": "" if weight is None else _name(weight.dtype),
            "autocast": _name(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else "",
            "eval": not module.training,
        }
        paths = [(path, tensor.dim()) for path, tensor in tensors]
        return _Pass(paths, largest, [_name(tensor.dtype) for _, tensor in tensors], call_site.place(), about)

    def _close(self) -> None:
        """Reports an evaluation that no pass in training has followed."""
        evaluation, self._open = self._open, None
        if evaluation is not None and all(transfer.ready() for transfer in evaluation.transfers()):
            self._conclude(evaluation, self._session.row.events)

    def _conclude(self, evaluation: _Evaluation, events: list[tuple[str, dict[str, Any]]]) -> None:
        bad = [(one, found) for one in evaluation.read if (found := _counting(one, evaluation))]
        data = {"step": evaluation.step, "passes": evaluation.passes, "read": len(evaluation.read)}
        if bad:
            origin = self._origin
            self._origin = origin or _origin(evaluation)
            self._hooked_evaluations += evaluation.hooked > 0
            if not self._was_bad or evaluation.step - self._reported_step >= REPEAT_STEPS or self._origin is not origin:
                self._reported_step = evaluation.step
                events.append(("evaluation.nonfinite", {**data, **_described(*bad[0]), "nonfinite": len(bad)}))
                if self._origin:
                    events[-1][1]["origin"] = self._origin
        elif evaluation.read and self._was_bad is not False:
            events.append(("evaluation.finite", data))
            self._origin, self._hooked_evaluations = None, 0
        self._was_bad = bool(bad) or (None if self._was_bad is None and not evaluation.read else False)


def _described(one: _Pass, found: dict[tuple[str, int], tuple[str, float]]) -> dict[str, Any]:
    (path, dimensions), (dtype, number) = next(iter(found.items()))
    kind = "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    caller = call_site.line_at(one.place)
    return {"output": path, "is_loss": not dimensions, "value": kind, "dtype": dtype, "caller": caller, **one.about}


def _origin(evaluation: _Evaluation) -> dict[str, Any] | None:
    for visits in evaluation.visits:
        found = culprit.find_origin(visits, "hooks", loss_is_finite=True)
        if found and found["kind"] != "backward":
            return {name: value for name, value in found.items() if name != "last"}
    return None


def _counting(one: _Pass, evaluation: _Evaluation) -> dict[tuple[str, int], tuple[str, float]]:
    """Returns the tensors of an output whose NaN is not by design.

    NaN that an output in training has, too, is by design. So may be that of a tensor which exists in evaluation alone,
    and of a list of numbers beside the tensors with samples: a metric has NaN for a class that the batch lacks.
    """
    bad = one.bad()
    if not bad:
        return bad
    known = evaluation.trained.paths if evaluation.trained else [path for path in one.paths if _may_be_loss(path[0])]
    usual = evaluation.trained.bad() if evaluation.trained else {}
    has_samples = any(dimensions > 1 for _, dimensions in one.paths)
    return {
        (path, dimensions): found
        for (path, dimensions), found in bad.items()
        if (path, dimensions) not in usual
        and (not path or not dimensions or ((path, dimensions) in known and (dimensions > 1 or not has_samples)))
    }


def _may_be_loss(path: str) -> bool:
    """Whether a single number at this place of an output is a loss and not a metric."""
    return path in ("", "[0]") or "loss" in path.lower()


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the largest of some elements, which is NaN if one of them is; -Inf of masked elements is not."""
    tensor = tensor.detach()
    if tensor.numel() > MAX_ELEMENTS:
        tensor = tensor[..., :: -(-tensor.numel() // MAX_ELEMENTS)]
        if tensor.numel() > MAX_ELEMENTS:
            tensor = tensor.reshape(-1)[:: -(-tensor.numel() // MAX_ELEMENTS)]
    return tensor.amax().float()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
