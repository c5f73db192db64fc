"""Finds the origin of a bad step: inputs, forward pass, backward or weights.

The methods differ in cost, from cheap to expensive: the inputs, stored as weak references; the frontier of finite and
non-finite gradients; the graph of a loss on the host, see loss_origin; a replay of the forward pass, if the program
enables it; and, after several bad steps in a row, hooks on the modules for a few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.origin import culprit, replay
from ammeter.probes.origin.asked import Asked
from ammeter.probes.origin.gradient_origin import GradientOrigin
from ammeter.probes.origin.hook_windows import HookWindows
from ammeter.probes.origin.inputs import Argument
from ammeter.probes.origin.replay import ForwardCall, capture
from ammeter.probes.origin.step_readings import StepReadings, preferred
from ammeter.probes.origin.visits import Visits
from ammeter.torch_hooks import optimizer_steps, patch
from ammeter.torch_hooks.closures import closure_in
from ammeter.torch_hooks.forward_calls import innermost, is_compiled

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.fast_path import FastStep
    from ammeter.recording.row import Row

REPEAT_STEPS = 100
"""Steps after which the same origin is reported again."""

MAX_READ_STEPS = 10
"""Consecutive bad steps whose inputs are read and whose forward pass may be replayed; later one in REPEAT_STEPS."""

HOOK_AFTER_BAD_STEPS = 2
"""Consecutive bad steps with a finite loss after which the modules get hooks.

A scaler that calibrates its scale skips single steps, so one bad step is not enough.
"""


class Origin:
    name = "origin"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._windows = HookWindows()
        self._gradient_origin = GradientOrigin(session)
        self._asked = Asked(session, self._windows, self._gradient_origin)
        self._hooks: list[Any] = []
        self._calls: list[ForwardCall] = []
        self._replays = 0
        self._bad_since = 0
        self._bad_steps = 0
        self._bad_in_window = False
        self._usual: frozenset[Argument] | None = None
        self._reported: dict[tuple[Any, ...], int] = {}
        self._reported_unknown: set[str] = set()

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        self._asked.subscribe(self.name, guard, self._reported.clear)
        kinds = self._session.watched.scaler_kinds
        return [
            self,
            self._gradient_origin,
            *self._session.fast_path.pauses(
                [
                    self._session.forward.subscribe(trains=guard(self._before_forward)),
                    optimizer_steps.before(guard(self._before_step)),
                    optimizer_steps.after(guard(self._after_step)),
                    *patch.methods(kinds, "step", after=guard(self._after_scaler_step)),
                ]
            ),
        ]

    def skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """Reads a skipped step while its inputs still exist."""
        step: StepReadings | None = self._session.row.raw.get("origin")
        if step is not None:
            self._read_after_backward(self._session.row, step, bad=True)

    def apply_fast_step(self, row: Row, fast_step: FastStep, is_open: bool) -> None:
        called = self._session.forward.take_last() if is_open else None
        if called and self._session.working and "origin" not in row.raw:
            step = row.raw["origin"] = StepReadings()
            step.inputs.remember(*called, (fast_step.passes or fast_step.backwards or 1) - 1)

    def count_fast_steps(self, first: int, count: int) -> None:
        self._bad_steps = 0

    def remove(self) -> None:
        """Removes the hooks from the modules."""
        while self._hooks:
            self._hooks.pop().remove()

    def finish(self, row: Row) -> None:
        step: StepReadings | None = row.raw.pop("origin", None)
        of_loss: dict[str, Any] | None = row.raw.pop("loss_origin", None)
        of_gradient: dict[str, Any] | None = row.raw.pop("gradient_origin", None)
        self._gradient_origin.disarm()
        nonfinite = next((data for event, data in row.events if event == "gradient.nonfinite"), None)
        loss_is_finite = math.isfinite(row.loss or 0.0)
        if step and step.visits and step.last_of_window:
            self._emit_peaks(row, step.visits)
        good = nonfinite is None and loss_is_finite and not row.scalars.get("skipped")
        if step and step.visits:
            self._update_window(step, good)
        if good:
            self._asked.found(row, step.visits if step else None, False, None)
            self._bad_steps = 0
            if self._usual is None and step and step.inputs.readings:
                self._usual = step.inputs.nonfinite()
            return
        self._bad_since = row.step if not self._bad_steps else self._bad_since
        self._bad_steps += 1
        backwards, usual = row.raw.get("micro_batches", 0), self._usual or frozenset()
        origin = step.find_origin(nonfinite, loss_is_finite, backwards, usual) if step else None
        if step and of_loss and (of_loss["reason"], of_loss["dtype"]) == ("constant", "float16"):
            of_loss |= step.inputs.beyond_float16()
        origin = preferred(origin, of_loss)
        if loss_is_finite:
            if of_gradient and (origin is None or origin["kind"] == "backward"):
                origin = of_gradient
            else:
                self._gradient_origin.arm(self._guard, row)
        tried = of_loss if of_loss and of_loss.get("trial") and not (origin and origin.get("trial")) else origin
        self._asked.found(row, step.visits if step else None, True, tried)
        for found in (origin, of_loss if of_loss and of_loss.get("line") else None):
            if found:
                self._emit_found(row, found)
        if not loss_is_finite or self._bad_steps >= HOOK_AFTER_BAD_STEPS:
            self._request_hooks(row, step, origin)

    def _update_window(self, step: StepReadings, good: bool) -> None:
        self._bad_in_window = self._bad_in_window or not good
        if step.last_of_window:
            if not self._bad_in_window:
                self._windows.was_empty()
            self._bad_in_window = False

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Stores the inputs of a forward pass in training mode; adds hooks in a window."""
        row = self._session.row
        step: StepReadings | None = row.raw.get("origin")
        if step is None:
            step = row.raw["origin"] = StepReadings()
            if self._calls:
                self._calls.clear()
        if self._session.replay:
            self._calls.append(capture(module, args, kwargs))
        step.inputs.remember(module, args, kwargs, row.raw.get("micro_batches", 0))
        if not self._windows.is_on(row.step):
            return
        if is_compiled(module):
            self._asked.compiled(row.step)
        else:
            self._session.fast_path.avoid()
            model = innermost(module)
            step.visits = step.visits or Visits()
            step.last_of_window = self._windows.is_last(row.step)
            self._hooks.append(self._session.forward.subscribe(after=self._after_forward))
            self._hooks += step.visits.enter(model, self._session.forward.prefix(model), self._guard)

    def _after_forward(self, _: torch.nn.Module, __: Any, ___: Any, output: Any) -> None:
        """Removes the hooks. Not guarded, so it also runs after a fault has switched off the probe."""
        self.remove()
        step: StepReadings | None = self._session.row.raw.get("origin")
        if step and step.visits:
            step.visits.leave()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if closure_in(args, kwargs) is None:
            self._read_step(optimizer)

    def _after_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Reads a step with a closure after its end.

        Its forward pass ran inside step(). A replay is impossible now, because it would use other weights.
        """
        if closure_in(args, kwargs) is not None:
            self._calls.clear()
            self._read_step(optimizer)

    def _read_step(self, optimizer: torch.optim.Optimizer) -> None:
        row = self._session.row
        step: StepReadings | None = row.raw.get("origin")
        if step is None or optimizer not in self._session.watched.optimizers:
            return
        if self._usual is None:
            self._read_usual(row, step)
        if not row.scaler_used or step.visits:  # with a scaler, skipped() reports the bad step
            self._read_after_backward(row, step, bad=_loss_is_bad(row))
            self._calls.clear()

    def _read_usual(self, row: Row, step: StepReadings) -> None:
        """Reads the inputs of a first step, because some models replace NaN in their inputs."""
        if step.inputs.readings is None:
            for transfer in step.inputs.read().send():
                row.later("origin", transfer)

    def _after_scaler_step(self, args: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        row = self._session.row
        step: StepReadings | None = row.raw.get("origin")
        if step is not None and _loss_is_bad(row):
            self._read_after_backward(row, step, bad=True)
        self._calls.clear()

    def _read_after_backward(self, row: Row, step: StepReadings, *, bad: bool) -> None:
        """Reads a step after backward, while the inputs exist and the weights are unchanged."""
        if not bad and step.visits is None:
            return
        if bad and not step.was_read:
            row.urgent = step.was_read = True
            if self._bad_steps < MAX_READ_STEPS or self._bad_steps % REPEAT_STEPS == 0:
                step.inputs.read()
                self._replay(row, step)
        was_read = [source.readings for source in (step.inputs, step.visits, step.replayed) if source]
        for transfer in [transfer for readings in was_read if readings for transfer in readings.send()]:
            row.later("origin", transfer)

    def _replay(self, row: Row, step: StepReadings) -> None:
        """Replays the forward passes of the step, between backward and update()."""
        if self._calls and step.visits is None and self._replays < replay.MAX_REPLAYS:
            self._replays += 1
            try:
                step.replayed = replay.replay(self._calls, self._session.forward.prefix, self._guard)
            except replay.Refused as refused:
                self._emit_unknown(row, f"replay: {refused}")

    def _request_hooks(self, row: Row, step: StepReadings | None, origin: dict[str, Any] | None) -> None:
        """Arms a window of hooks unless the origin is known precisely.

        The frontier names a module with weights; hooks also find operators between it and the next such module. The
        graph names an operator, hooks the class of its module.
        """
        if origin and origin["confidence"] not in ("frontier", "graph"):
            return
        reason = ""
        if step is None:
            reason = "unheard"
        elif step.inputs.of_compiled():
            reason = "compiled"
        elif step.visits:
            reason = "finite"
        elif not self._windows.request():
            reason = "windows"
        if reason and not origin:
            self._emit_unknown(row, reason)

    def _emit_found(self, row: Row, origin: dict[str, Any]) -> None:
        method = origin["confidence"] if origin["confidence"] == "graph" else ""
        key = (*map(origin.get, ("kind", "module", "tensor", "input", "line")), method)
        if row.step - self._reported.get(key, -REPEAT_STEPS) >= REPEAT_STEPS:
            self._reported[key] = row.step
            data = {name: value for name, value in origin.items() if name != "made_inside"}
            row.events.append(("origin.found", {**data, "since": self._since(row)}))

    def _emit_unknown(self, row: Row, reason: str) -> None:
        if reason not in self._reported_unknown:
            self._reported_unknown.add(reason)
            row.events.append(("origin.unknown", {"reason": reason, "since": self._since(row)}))

    def _since(self, row: Row) -> int:
        return row.step - self._bad_since if self._bad_steps else 0

    def _emit_peaks(self, row: Row, visits: Visits) -> None:
        peaks = culprit.peaks(visits)
        if peaks:
            row.events.append(("activation.peaks", {"modules": peaks}))


def _loss_is_bad(row: Row) -> bool:
    """Whether a loss that has already arrived on the host is not finite."""
    for loss in row.transfers.get("loss", ()):  # noqa: SIM110 - in every step: a generator costs more than its body
        if loss.ready() and not math.isfinite(loss.number()):
            return True
    return False
