"""Reports autocast contexts, and calls of backward() or of an optimizer inside one.

A context is reported once per combination of device, dtype and gradient mode. A step inside one may leave copies of the
weights behind that later forward passes use; see stale_casts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.call_order.marks import roots
from ammeter.probes.stale_casts import StaleCasts, depth
from ammeter.torch_hooks import call_site, optimizer_steps, patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

MIN_SCOPE_STEPS = 3
"""Steps with a call inside autocast. A single one may be a trial of the program."""

MAX_SEARCH_STEPS = 12
"""Steps with a call inside autocast, without a context entered in them: it was entered once, before all of them."""

BACKWARD = "backward()"


class Autocast:
    name = "autocast"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._seen: set[tuple[str, str, bool]] = set()
        self._entered: list[tuple[Any, str]] = []
        """The open contexts and the lines that entered them, while a call inside autocast is being followed. Disabled
        ones are among them: they keep the copies of an outer one."""
        self._search: list[Any] = []
        self._steps: dict[str, list[int]] = {}
        """The first and the last step with each call inside autocast, and their number."""
        self._is_done = False
        self._stale = StaleCasts(session)

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        context = torch.amp.autocast_mode.autocast
        handles = [
            patch.method(context, "__enter__", after=guard(self._after_enter)),
            patch.backward(before=guard(self._before_backward)),
            optimizer_steps.before_timed(guard(self._before_step)),
            optimizer_steps.after(guard(self._after_step)),
        ]
        return [self, *self._session.fast_path.pauses(handles)]

    def remove(self) -> None:
        """Ends the search for the context around a call."""
        self._entered = []
        while self._search:
            self._search.pop().remove()

    def _after_enter(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        context = args[0]
        if not context._enabled:
            return
        dtype = _name(context.fast_dtype)
        combination = (str(context.device), dtype, torch.is_grad_enabled())
        if combination not in self._seen:
            self._seen.add(combination)
            self._session.emit("autocast.entered", {"device": combination[0], "dtype": dtype, "grad": combination[2]})

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_inside = not self._is_done and _is_any_enabled()
        if not (is_inside or self._stale.is_due) or patch.inside_backward():
            return
        losses = roots(patch.outputs(args, kwargs))
        if self._stale.is_due:
            self._check_copies(losses)
        if is_inside and not self._is_done:
            self._check(BACKWARD, {loss.device.type for loss in losses})

    def _before_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if self._is_done or not _is_any_enabled() or patch.inside_backward():
            return
        if optimizer in self._session.watched.optimizers:
            parameters = self._session.watched.parameters(optimizer)[0]
            self._check(f"{type(optimizer).__name__}.step()", {parameter.device.type for parameter in parameters})

    def _after_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if not depth() or self._stale.is_done or optimizer not in self._session.watched.optimizers:
            return
        self._stale.after_step(optimizer, self._entered[0][1] if len(self._entered) == depth() else "")
        if not self._search and not self._is_done:
            self._follow()

    def _check_copies(self, losses: list[torch.Tensor]) -> None:
        data = self._stale.before_backward(losses)
        if data is not None:
            self._is_done = True
            self.remove()
            self._session.emit("usage.autocast_scope", data)

    def _check(self, call: str, devices: set[str]) -> None:
        device = next((device for device in sorted(devices) if torch.is_autocast_enabled(device)), None)
        if device is None:
            return
        step = self._session.row.step
        first, last, count = self._steps.get(call, (step, -1, 0))
        if step != last:
            count += 1
        self._steps[call] = [first, step, count]
        if not self._search:
            self._follow()
        enabled = ((context, line) for context, line in reversed(self._entered) if context._enabled)
        line = next((line for context, line in enabled if context.device == device), "")
        is_certain = line and count >= MIN_SCOPE_STEPS and not self._stale.is_suspected
        if is_certain or count >= MAX_SEARCH_STEPS:
            self._report(call, device, first, line)

    def _report(self, call: str, device: str, first: int, line: str) -> None:
        """Reports the call, unless an installed package such as a trainer entered the context around it."""
        self._is_done = True
        self.remove()
        if f"-packages{os.sep}" in line:
            return
        data = {"call": call, "line": call_site.line(), "device": device, "first_step": first}
        dtype = _name(torch.get_autocast_dtype(device))
        self._session.emit("usage.autocast_scope", data | {"caller": line or data["line"], "dtype": dtype})

    def _follow(self) -> None:
        """Follows contexts from now on, to know the one around the next such call."""
        context = torch.amp.autocast_mode.autocast
        self._search = [
            patch.method(context, "__enter__", after=self._guard(self._opened)),
            patch.method(context, "__exit__", after=self._guard(self._left)),
        ]
        self._session.fast_path.avoid(MAX_SEARCH_STEPS)

    def _opened(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        self._entered.append((args[0], call_site.line()))

    def _left(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        while any(context is args[0] for context, _ in self._entered):
            if self._entered.pop()[0] is args[0]:
                return


_is_any_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
