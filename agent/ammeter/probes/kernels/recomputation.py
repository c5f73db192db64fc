"""Finds modules that backward() runs again in another dtype than the forward pass, as activation checkpointing may.

In a few steps, hooks read the dtype of each module's output, in the forward pass and inside backward(). A switch is
reported after two steps have shown it, or when its step ends the run with an error.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.kernels.census import LOW_PRECISION
from ammeter.probes.kernels.recomputed_calls import Calls, Observed, running_again
from ammeter.torch_hooks import call_site, patch
from ammeter.torch_hooks.forward_calls import hookable, innermost, is_compiled, wrapped
from ammeter.torch_hooks.hook_points import AtEnd

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

FIRST_STEPS = 3
"""Steps at the beginning of a run that are observed. A checkpoint that does not restore autocast shows in all steps."""

MAX_PERIOD_STEPS = 1024
"""Later, the steps between two observed ones double, up to this many: a run of a million steps has about a thousand
steps with hooks."""

MIN_STEPS = 2
"""Steps that show a switch. A single one may be a trial of the program."""


class Recomputation:
    name = "recomputation"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._calls: Calls | None = None
        """The calls of the observed step."""
        self._step = -1
        self._next = 0
        """From this step on, the next one that is not on the fast path is observed."""
        self._is_wanted = False
        self._first_step = self._steps = 0
        self._is_done = False
        self._handles: list[Any] = []
        """Subscriptions of the observed step."""
        self._hooks: list[Any] = []
        """Hooks on modules. They exist during forward calls and backward() only, where no program copies or saves its
        model."""
        self._entered: set[tuple[str, torch.dtype]] = set()
        """Device and dtype of autocast contexts that were entered inside backward()."""

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        if self._session.governor.preset == "light":
            return []
        handles = [
            self._session.forward.subscribe(
                trains=guard(self._before_forward), evaluates=guard(self._before_evaluation)
            ),
            patch.method(torch.amp.autocast_mode.autocast, "__enter__", after=guard(self._after_enter)),
        ]
        return [self, *self._session.fast_path.pauses(handles), AtEnd(guard(self._at_end))]

    def remove(self) -> None:
        """Ends the observed step."""
        self._unhook()
        while self._handles:
            self._handles.pop().remove()
        self._calls = None

    def finish(self, row: Row) -> None:
        if self._calls is not None and row.step >= self._calls.step:
            self._close()

    def before_fast_path(self) -> None:
        """Ends the observed step, whose callbacks would make the fast path slower and hide the model's last call."""
        self._close()

    def _close(self) -> None:
        """Ends the observed step and judges it."""
        calls = self._calls
        self.remove()
        if calls is None or not calls.switches:
            return
        self._count(calls)
        if self._steps >= MIN_STEPS:
            self._report(calls)
        else:
            self._request()

    def _request(self) -> None:
        """Observes the next step."""
        self._is_wanted = True
        self._session.fast_path.avoid()

    def _after_enter(self, args: tuple[Any, ...], _: dict[str, Any], __: Any) -> None:
        """Requests a step at the first context of a dtype inside backward(): a recomputation may have changed."""
        if not patch.inside_backward():
            return
        entered = args[0].device, args[0].fast_dtype
        if entered not in self._entered and not self._is_done:
            self._entered.add(entered)
            self._request()

    def _count(self, calls: Calls) -> None:
        if not self._steps:
            self._first_step = calls.step
        self._steps += 1

    def _report(self, calls: Calls) -> None:
        self._is_done = True
        self._session.emit("kernels.recomputed", self._data(calls))

    def _is_due(self, step: int) -> bool:
        return not self._is_done and (self._is_wanted or step >= self._next)

    def _before_evaluation(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training:  # a checkpoint's first pass, which records no gradients
            self._before_forward(module, args, kwargs)

    def _before_forward(self, module: torch.nn.Module, _: Any, __: Any) -> None:
        step = self._session.row.step
        if step != self._step:
            self._step = step
            self._close()
            if self._is_due(step):
                self._open(step)
        if self._calls is not None and not patch.inside_backward():
            self._observe(module, self._calls)

    def _open(self, step: int) -> None:
        self.remove()
        self._is_wanted = False
        self._next = step + (1 if step + 1 < FIRST_STEPS else min(step, MAX_PERIOD_STEPS))
        self._calls = Calls(step)
        before, after = self._guard(self._before_backward), self._after_call
        self._handles = [
            patch.backward(before=before, after=after, always=True),
            self._session.forward.subscribe(after=after),
        ]

    def _observe(self, root: torch.nn.Module, calls: Calls) -> None:
        """Adds hooks to the modules of a model for this call."""
        if id(root) not in calls.modules:
            calls.modules[id(root)] = []
            if not any(map(is_compiled, (root, *wrapped(root)))):
                model = innermost(root)
                calls.learn(root, hookable(model), self._session.forward.prefix(model))
        self._hook(calls.modules[id(root)])

    def _hook(self, modules: Iterable[weakref.ref[torch.nn.Module]]) -> None:
        left = self._guard(self._left)
        for reference in modules:
            module = reference()
            if module is not None:
                self._hooks.append(module.register_forward_hook(left, always_call=True))

    def _unhook(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _before_backward(self, *_: Any) -> None:
        calls = self._calls
        if calls is not None and not patch.inside_backward():
            calls.backward_at = call_site.spot()
            self._unhook()
            self._hook(module for modules in calls.modules.values() for module in modules)

    def _after_call(self, *_: Any) -> None:
        """Removes the hooks after a forward call and after backward().

        Not guarded, so it also runs after a fault has switched off the probe.
        """
        if not patch.inside_backward():
            self._unhook()

    def _left(self, module: torch.nn.Module, args: tuple[Any, ...], output: Any) -> None:
        calls = self._calls
        if calls is None or calls.step != self._session.row.step:
            return
        is_again = patch.inside_backward()
        if is_again and not torch.is_grad_enabled():
            return
        observed = Observed.of(output)
        if observed is None:
            if is_again and output is None:
                self._raised(module, args, calls)
        elif not is_again:
            calls.note(module, observed)
        else:
            before = calls.switched(module, observed)
            if before is not None and {before.dtype, observed.dtype} & set(LOW_PRECISION):
                calls.add(module, before, observed, running_again())

    def _raised(self, module: torch.nn.Module, args: tuple[Any, ...], calls: Calls) -> None:
        """Notes a module that raises when it runs again, if autocast is in another state there."""
        error, now = sys.exc_info()[1], Observed.of(args)
        if error is None or now is None or type(error).__module__ == torch.utils.checkpoint.__name__:
            return  # torch's checkpoint ends a recomputation with an exception of its own
        again = running_again()
        if again is not None:
            calls.has_raised = True
            before = calls.in_other_autocast(module, now.autocast)
            if before is not None and not calls.switches:
                calls.add(module, before, now._replace(dtype=None), again)

    def _at_end(self) -> None:
        """Reports the step that ends the run with an error."""
        calls = self._calls
        error = sys.exc_info()[1] or getattr(sys, "last_value", None)
        if calls is not None and calls.switches and error is not None:
            self._count(calls)
            self._report(calls)
        elif calls is not None:
            self._close()

    def _data(self, calls: Calls) -> dict[str, Any]:
        switch = calls.switches[0]
        return {
            "module": switch.module,
            "modules": len({other.module for other in calls.switches if other.is_like(switch)}),
            "dtype": _name(switch.before.dtype),
            "again": _name(switch.again.dtype),
            "autocast": switch.before.autocast,
            "autocast_again": switch.again.autocast,
            "caller": call_site.written(switch.spot),
            "line": call_site.written(calls.backward_at),
            "checkpoint": switch.of_checkpoint,
            "raised": calls.has_raised,
            "first_step": self._first_step,
        }


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or "").removeprefix("torch.")
