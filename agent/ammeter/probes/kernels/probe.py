"""Takes a sampled census of the operators of a forward pass: dtypes, casts and fallbacks.

A dispatch mode is active during one forward call, and with the preset `full` also during the next backward call. No
census is taken while the program uses a dispatch mode, a function transform or a profiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from ammeter.probes.kernels.census import Census, Summary, Work, summary
from ammeter.probes.kernels.float32_reference import References
from ammeter.probes.kernels.sensitive import SensitiveOperators
from ammeter.torch_hooks import patch
from ammeter.torch_hooks.forward_calls import hookable, innermost, is_compiled
from ammeter.torch_hooks.targets import plain_name

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

FIRST_STEP = 1
"""First step with a census: step 0 also initializes lazy modules and caches, so it is not representative."""

MAX_FALLBACKS = 20
"""Fallbacks reported in a run. The same operator in modules with similar names, such as blocks.*.mlp, counts once."""

MIN_FLOPS_SHARE = 0.001
"""Share of the eligible FLOPs below which a fallback is not reported, because it hardly affects the speed."""

HOOK_SECONDS = 1.5e-6
"""Cost of one call of a hook on a module, charged to the budget; the census does not measure it."""

MAX_REQUESTED = 4
"""Further censuses in a run that are taken although the budget does not allow them yet, because the number of autocast
contexts inside a forward pass has changed. A model may enter a context in some calls only, so that they are limited."""

LOOK_AGAIN_STEPS = (16, 64, 256)
"""Steps at or after which a census is taken although the budget does not allow it yet: a change of precision that shows
in no context that the probe has observed is found in short runs, too."""

MIN_SHARE_CHANGE = 0.01
"""The census is reported again after its low-precision share has changed by this much."""


class Kernels:
    name = "kernels"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._census: Census | None = None
        self._handles: list[Any] = []
        self._back: list[Any] = []
        self._modules: list[tuple[int, str]] = []
        self._names: dict[int, str] = {}
        self._began = 0.0
        self._step = -1
        self._region = False
        self._reported: tuple[float, tuple[str, ...]] | None = None
        self._reported_backward: float | None = None
        self._fallbacks: set[tuple[str, str, str]] = set()
        self._blind: set[str] = set()
        self._contexts = 0
        """autocast contexts, enabled or not, that were entered since the forward pass began."""
        self._usual_contexts: dict[int, set[int]] = {}
        """id of a model -> numbers of contexts inside its forward passes so far."""
        self._requests = 0
        self._is_requested = False
        self._sensitive = SensitiveOperators(session)
        self._looks = [] if session.governor.preset == "light" else [*LOOK_AGAIN_STEPS]

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        self._guard = guard
        handles = [
            self._session.forward.subscribe(trains=guard(self._before_forward), after=guard(self._left_forward)),
            patch.method(torch.amp.autocast_mode.autocast, "__enter__", after=guard(self._entered_context)),
        ]
        return [self, *self._session.fast_path.pauses(handles)]

    def finish(self, row: Row) -> None:
        self._sensitive.finish(row)
        self._request(self._sensitive.is_open)

    def remove(self) -> None:
        """Ends the census in progress and removes its hooks."""
        while self._handles or self._back:
            (self._handles or self._back).pop().remove()
        census, self._census = self._census, None
        if census is not None:
            census.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def _before_forward(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step, self._contexts = self._session.row.step, 0
        if step < FIRST_STEP or step == self._step:
            return
        self._step = step
        is_due = bool(self._looks) and step >= self._looks[0]
        if not self._session.governor.kernels.allows() and not self._is_requested and not is_due:
            return
        self._looks = [later for later in self._looks if later > step]
        self._is_requested = False
        if is_compiled(module):
            self._emit_blind("compiled")
        elif _is_observed():
            self._emit_blind("busy")
        else:
            self._open(innermost(module), self._sensitive.references(is_due))
            return
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

    def _open(self, model: torch.nn.Module, references: References | None) -> None:
        self.remove()
        self._began = perf_counter()
        census = Census(references)
        census.autocast = _autocast()
        self._region = any(census.autocast.values())
        prefix = self._session.forward.prefix(model)
        entered, left = self._guard(self._entered), self._guard(self._left)
        context = torch.amp.autocast_mode.autocast
        self._handles = [
            patch.method(context, "__enter__", after=self._guard(self._switched)),
            patch.method(context, "__exit__", after=self._guard(self._switched)),
            self._session.forward.subscribe(after=self._after_forward),
        ]
        self._modules, self._names = [], {}
        for name, module in hookable(model):
            self._names[id(module)] = prefix + plain_name(name)
            self._handles.append(module.register_forward_pre_hook(entered))
            self._handles.append(module.register_forward_hook(left))
        census.__enter__()  # type: ignore[no-untyped-call]
        self._census = census

    def _after_forward(self, _: torch.nn.Module, __: Any, ___: Any, output: Any) -> None:
        """Ends the census of a forward pass; with the preset `full`, prepares that of backward.

        Not guarded, so it also runs after a fault has switched off the probe.
        """
        census, modules = self._census, len(self._names)
        self.remove()
        if census is not None:
            self._guard(self._forward_counted)(census, modules, output)
            if self._session.governor.preset == "full":
                self._back = [
                    patch.method(
                        torch.Tensor,
                        "backward",
                        before=self._guard(self._before_backward),
                        after=self._after_backward,
                        always=True,
                    )
                ]

    def _forward_counted(self, census: Census, modules: int, output: Any) -> None:
        self._charge(census, modules)
        if output is not patch.RAISED:
            self._report(self._session.row, census)
            if census.references is not None:
                self._sensitive.take(census.references)

    def _charge(self, census: Census, modules: int) -> None:
        seconds = census.seconds + (census.references.seconds if census.references is not None else 0.0)
        self._session.charge(seconds)
        self._session.governor.kernels.spend(seconds + 2 * modules * HOOK_SECONDS)
        if census.fault is not None:
            raise census.fault

    def _before_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _is_observed():
            self._began = perf_counter()
            census = Census()
            census.__enter__()  # type: ignore[no-untyped-call]
            self._census = census

    def _after_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Ends the census of backward. Not guarded, for the same reason as _after_forward()."""
        census = self._census
        self.remove()
        if census is not None:
            self._guard(self._backward_counted)(census, result)

    def _backward_counted(self, census: Census, output: Any) -> None:
        self._charge(census, 0)
        summed = summary(census, region=True)
        if output is not patch.RAISED and summed.eligible and self._reported_backward is None:
            self._reported_backward = summed.low / summed.eligible
            self._emit_census(self._session.row, census, summed, "backward")

    def _entered(self, module: torch.nn.Module, *_: Any) -> None:
        self._modules.append((id(module), self._census.module if self._census else ""))
        if self._census is not None:
            self._census.module = self._names.get(id(module), "")

    def _left(self, module: torch.nn.Module, *_: Any) -> None:
        while self._modules:
            left, outside = self._modules.pop()
            if self._census is not None:
                self._census.module = outside
            if left == id(module):
                return

    def _switched(self, *_: Any) -> None:
        if self._census is not None:
            self._census.autocast = _autocast()
            self._region = self._region or any(self._census.autocast.values())

    def _report(self, row: Row, census: Census) -> None:
        result = summary(census, region=self._region)
        row.scalars["cast_bytes"] = census.cast_bytes
        if not result.eligible or not (self._region or result.low):
            return
        share = result.low / result.eligible
        row.scalars["low_precision_share"] = share
        backends = tuple(sorted(census.attention))
        reported, reported_backends = self._reported or (math.inf, ())
        if abs(share - reported) >= MIN_SHARE_CHANGE or backends != reported_backends:
            self._reported = (share, backends)
            self._emit_census(row, census, result, "forward")
        for work in result.fallbacks:
            self._emit_fallback(row, work, result)

    def _emit_census(self, row: Row, census: Census, result: Summary, phase: str) -> None:
        data = {
            "phase": phase,
            "flops_eligible": result.eligible,
            "flops_low": result.low,
            "share": result.low / result.eligible,
            "casts": census.casts,
            "cast_bytes": census.cast_bytes,
            "recast_bytes": census.recast_bytes,
            "attention": sorted(census.attention),
            "seconds": perf_counter() - self._began,
            "whole": census.is_complete,
        }
        row.events.append(("kernels.census", data))

    def _emit_fallback(self, row: Row, work: Work, result: Summary) -> None:
        key = _key(work)
        equal = [fallback for fallback in result.fallbacks if _key(fallback) == key]
        flops = sum(fallback.flops for fallback in equal)
        if key in self._fallbacks or len(self._fallbacks) >= MAX_FALLBACKS or flops < MIN_FLOPS_SHARE * result.eligible:
            return
        self._fallbacks.add(key)
        data = {
            "op": work.op,
            "module": work.module,
            "modules": len(equal),
            "reason": work.reason,
            "dtype": str(work.dtype).removeprefix("torch."),
            "shape": work.shape,
            "caller": work.caller,
            "flops_share": flops / result.eligible,
        }
        row.events.append(("kernel.fallback", data))

    def _emit_blind(self, reason: str) -> None:
        if reason not in self._blind:
            self._blind.add(reason)
            self._session.emit("kernels.blind", {"reason": reason})


def _key(work: Work) -> tuple[str, str, str]:
    return work.op, re.sub(r"\b\d+\b", "*", work.module), work.reason


def _autocast() -> dict[str, bool]:
    return {device: torch.is_autocast_enabled(device) for device in ("cpu", "cuda")}


def _is_observed() -> bool:
    """Whether a dispatch mode, a profiler or a functorch transform of the program is active."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._autograd._profiler_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
