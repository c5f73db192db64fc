"""Profiles the kernels of five steps by name, for `ammeter run --profile`.

torch supports one profiler per process, and a second one breaks the first. Ammeter therefore starts none if the
program has created one, and stops its own as soon as the program creates one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import emit_itt, emit_nvtx, profile
from torch.profiler.profiler import _KinetoProfile

from ammeter.tensors.live_objects import live_objects
from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

WARM_UP_STEPS = 20
PROFILED_STEPS = 5
MAX_KERNELS = 30
MAX_NAME_CHARS = 200

_PROFILERS = (profile, emit_nvtx, emit_itt, _KinetoProfile)


class Profiling:
    """Counts the steps that call backward() and profiles once, after WARM_UP_STEPS of them."""

    name = "profiling"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._profiler: torch.profiler.profile | None = None
        self._steps = 0
        self._counted_step = -1
        self._is_finished = False
        self._is_starting = False

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        handles = [patch.method(kind, "__init__", before=guard(self._before_program_profiler)) for kind in _PROFILERS]
        return [self, *handles, patch.backward(before=guard(self._backward))]

    def remove(self) -> None:
        """Stops Ammeter's profiler if it still runs, without reading its measurements."""
        self._is_finished = True
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def _backward(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        """Counts each step once, independent of its number of backward passes."""
        step = self._session.row.step
        if self._is_finished or step == self._counted_step:
            return
        self._counted_step = step
        self._steps += 1
        if self._steps == WARM_UP_STEPS:
            self._start()
        elif self._steps == WARM_UP_STEPS + PROFILED_STEPS:
            self._finish()

    def _start(self) -> None:
        if _profiler_enabled() or live_objects(*_PROFILERS):
            self._emit_refused("the program has a profiler of its own")
            return
        self._is_starting = True
        try:
            self._profiler = torch.profiler.profile()
            self._profiler.start()
        finally:
            self._is_starting = False

    def _finish(self) -> None:
        profiler = self._profiler
        self.remove()
        if profiler is not None:
            self._session.emit("kernels.profiled", {"steps": PROFILED_STEPS, "kernels": _kernels(profiler)})

    def _before_program_profiler(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        if self._profiler is not None and not self._is_starting:
            self.remove()
            self._emit_refused("the program has made a profiler meanwhile")

    def _emit_refused(self, reason: str) -> None:
        self._is_finished = True
        self._session.emit("kernels.profiled", {"steps": 0, "kernels": [], "refused": reason})


def _kernels(profiler: torch.profiler.profile) -> list[dict[str, Any]]:
    """The MAX_KERNELS slowest entries: kernels of a device, else operators of the CPU."""
    rows = [_row(average) for average in profiler.key_averages()]
    devices = [row for row in rows if row["device"] != "cpu"]
    rows = sorted(devices or rows, key=lambda row: -float(row["seconds"]))
    return rows[:MAX_KERNELS]


def _row(average: Any) -> dict[str, Any]:
    device = str(average.device_type).rpartition(".")[2].lower()
    micros = average.self_cpu_time_total if device == "cpu" else average.self_device_time_total
    name = str(average.key)[:MAX_NAME_CHARS]
    return {"name": name, "calls": int(average.count), "seconds": float(micros) / 1e6, "device": device}
