"""Takes a sampled census of the operators of a forward pass: dtypes, casts and fallbacks.

The census of a step counts the first training call of each watched model. A dispatch mode is active during these calls,
and with the preset `full` also during the next backward call. No call is counted while the program uses a dispatch
mode, a function transform or a profiler.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.kernels import asked
from ammeter.probes.kernels.census import Census
from ammeter.probes.kernels.forward_call import ForwardCall
from ammeter.probes.kernels.forward_order import ForwardOrder
from ammeter.probes.kernels.rate_jumps import RateJumps
from ammeter.probes.kernels.reports import Reports
from ammeter.probes.kernels.sensitive import SensitiveOperators
from ammeter.probes.kernels.step_census import StepCensus
from ammeter.probes.kernels.timing.reports import DurationReports
from ammeter.recording.directives.request import Arm
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.forward_calls import innermost, is_compiled

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

FIRST_STEP = 1
"""First step with a census: step 0 also initializes lazy modules and caches, so it is not representative."""

MAX_REQUESTED = 4
"""Further censuses in a run that are taken although the budget does not allow them yet, because the number of autocast
contexts inside a forward pass has changed, or the learning rate has jumped. A model may enter a context in some calls
only, and a schedule may have many jumps, so that they are limited."""

MAX_JUMPS = 2
"""Jumps of the learning rate after which such a census is taken."""

LOOK_AGAIN_STEPS = (16, 64, 128, 256)
"""Steps at or after which a census is taken although the budget does not allow it yet: a change of precision that shows
in no context that the probe has observed is found in short runs, too."""


class Kernels:
    name = "kernels"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._census: StepCensus | None = None
        """The census of the open step, and after it until its cost has been charged."""
        self._call: ForwardCall | None = None
        self._backward: tuple[Census, float] | None = None
        """The census of the backward pass that is running, and when it began."""
        self._handles: list[Any] = []
        """What waits for the end of a forward call, or for backward()."""
        self._step = -1
        self._blind: set[str] = set()
        self._contexts = 0
        """autocast contexts, enabled or not, that were entered since the forward pass began."""
        self._usual_contexts: dict[int, set[int]] = {}
        """id of a model -> numbers of contexts inside its forward passes so far."""
        self._requests = 0
        self._is_requested = False
        self._rates, self._jumps = RateJumps(), 0
        self._reports, self._durations = Reports(), DurationReports()
        self._sensitive = SensitiveOperators()
        self._order: ForwardOrder | None = ForwardOrder()
        self._looks = [] if session.governor.preset == "light" else [*LOOK_AGAIN_STEPS]

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        self._session.directives.subscribe(asked.CENSUS, Arm(self.name, begin=asked.begin))
        handles = [
            self._session.forward.subscribe(trains=guard(self._before_forward), after=guard(self._left_forward)),
            patch.method(torch.amp.autocast_mode.autocast, "__enter__", after=guard(self._entered_context)),
        ]
        return [self, *self._session.fast_path.pauses(handles)]

    def finish(self, row: Row) -> None:
        census: StepCensus | None = row.raw.pop("kernels", None)
        if census is not None:
            self._settle(census)
            self._read_durations(census)
            self._reports.report(row, census)
            self._report_order(row, census)
            self._durations.report(row, census)
            if census.measured is not None and census.calls:
                self._sensitive.judge(row, census.measured)
            self._request(self._sensitive.is_open)
            request = self._session.directives.current(asked.CENSUS, row.step)
            if request is not None:
                asked.add(request, census)
        if self._jumps < MAX_JUMPS and self._rates.jumps(row.scalars.get("optimizer_lr")):
            self._jumps += 1
            self._request(self._session.governor.preset != "light")

    def _read_durations(self, census: StepCensus) -> None:
        """Reads and charges what has arrived from a device; there is nothing to read on the CPU."""
        seconds = census.read_durations()
        if seconds > 0:
            self._session.charge(seconds)
            self._session.governor.kernels.spend_on_device(seconds)

    def remove(self) -> None:
        """Ends the count in progress and removes its hooks."""
        while self._handles:
            self._handles.pop().remove()
        call, self._call = self._call, None
        backward, self._backward = self._backward, None
        if call is not None:
            call.end()
        if backward is not None:
            backward[0].__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        row, self._contexts = self._session.row, 0
        if row.step != self._step:
            self._step = row.step
            self._begin(row)
        census: StepCensus | None = row.raw.get("kernels")
        if census is None or not census.is_first_call(module):
            return
        if is_compiled(module):
            self._emit_blind("compiled")
        elif _is_observed():
            self._emit_blind("busy")
        else:
            self._open(innermost(module), census.begin())

    def _open(self, model: torch.nn.Module, census: Census) -> None:
        self.remove()
        self._handles = [self._session.forward.subscribe(after=self._after_forward)]
        self._call = ForwardCall(census, model, self._session.forward.prefix(model), self._guard)

    def _begin(self, row: Row) -> None:
        """Decides whether a census of this step is taken."""
        if self._census is not None:
            self._settle(self._census)
        is_due = bool(self._looks) and row.step >= self._looks[0]
        is_asked = self._session.directives.current(asked.CENSUS, row.step) is not None
        is_wanted = self._is_requested or is_due or is_asked
        if row.step < FIRST_STEP or not (self._session.governor.kernels.allows() or is_wanted):
            return
        self._looks = [later for later in self._looks if later > row.step]
        self._is_requested = False
        self._census = row.raw["kernels"] = StepCensus(
            with_references=self._sensitive.is_wanted(is_due), is_asked=is_asked
        )

    def _settle(self, census: StepCensus) -> None:
        """Charges a census to the budget of the probe; cancels it if nothing could be counted."""
        if census is self._census:
            self._census = None
            if census.calls:
                self._session.governor.kernels.spend(census.cost_seconds, in_debt=not census.is_asked)
            elif not census.is_asked:
                self._session.governor.kernels.cancel()

    def _entered_context(self, *_: Any) -> None:
        self._contexts += 1

    def _left_forward(self, module: torch.nn.Module, _: Any, __: Any, output: Any) -> None:
        """Requests a census of the next step if this call entered another number of contexts than all before it."""
        if output is patch.RAISED or not (module.training and torch.is_grad_enabled()):
            return
        usual = self._usual_contexts.setdefault(id(module), set())
        self._request(bool(usual) and self._contexts not in usual)
        usual.add(self._contexts)

    def _request(self, is_wanted: bool) -> None:
        """Requests a census of the next step."""
        if is_wanted and not self._is_requested and self._requests < MAX_REQUESTED:
            self._requests += 1
            self._is_requested = True
            self._session.fast_path.avoid()

    def _after_forward(self, _: torch.nn.Module, __: Any, ___: Any, output: Any) -> None:
        """Ends the count of a forward call; with the preset `full`, prepares that of backward.

        Not guarded, so it also runs after a fault has switched off the probe.
        """
        call = self._call
        self.remove()
        if call is not None:
            self._guard(self._forward_counted)(call, output)
            if self._session.governor.preset == "full":
                before, after = self._guard(self._before_backward), self._after_backward
                self._handles = [patch.method(torch.Tensor, "backward", before=before, after=after, always=True)]

    def _forward_counted(self, call: ForwardCall, output: Any) -> None:
        census: StepCensus | None = self._session.row.raw.get("kernels")
        if census is not None:
            seconds = census.add(call, has_raised=output is patch.RAISED)
            if self._order is not None and output is not patch.RAISED:
                self._order.add(call.entered, call.modules())
            self._charge(call.census, seconds)
            self._session.row.wait_for(call.census.durations)
            for measured in () if call.census.references is None else call.census.references.measured:
                self._session.row.wait_for(measured.norms)

    def _report_order(self, row: Row, census: StepCensus) -> None:
        """Reports the order of the modules once, with the first census."""
        order = self._order
        if order is not None and census.calls:
            self._order = None
            watched = self._session.watched
            data = order.event([tensor.name for tensor in watched.tensors], watched.alive())
            if data is not None:
                row.events.append(("tensors.ordered", data))

    def _charge(self, census: Census, seconds: float) -> None:
        self._session.charge(seconds)
        if census.fault is not None:
            raise census.fault

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_observed():
            census = Census()
            self._backward = census, perf_counter()
            census.__enter__()  # type: ignore[no-untyped-call]

    def _after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Ends the census of backward. Not guarded, for the same reason as _after_forward()."""
        backward = self._backward
        self.remove()
        if backward is not None:
            self._guard(self._backward_counted)(*backward, result)

    def _backward_counted(self, census: Census, began: float, output: Any) -> None:
        self._session.governor.kernels.spend(census.seconds)
        self._charge(census, census.seconds)
        step: StepCensus | None = self._session.row.raw.get("kernels")
        if step is not None and output is not patch.RAISED:
            step.backward = census, perf_counter() - began
            self._session.row.wait_for(census.durations)

    def _emit_blind(self, reason: str) -> None:
        asked.blind(self._session.directives.current(asked.CENSUS, self._session.row.step), reason)
        if reason not in self._blind:
            self._blind.add(reason)
            self._session.emit("kernels.blind", {"reason": reason})


def _is_observed() -> bool:
    """Whether a dispatch mode, a profiler or a functorch transform of the program is active."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._autograd._profiler_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
