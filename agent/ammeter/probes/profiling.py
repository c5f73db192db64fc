"""Profiles the kernels of five steps by name, for `ammeter run --profile`.

torch supports one profiler per process, and a second one breaks the first. Ammeter therefore starts none if the
program has created one, and stops its own as soon as the program creates one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._C._autograd import _profiler_enabled
from torch.autograd.profiler import emit_itt, emit_nvtx, profile
from torch.profiler.profiler import _KinetoProfile

from ammeter.torch_hooks import patch

if TYPE_CHECKING:
    from ammeter.recording.context import ProbeContext

WARM_UP = 20
STEPS = 5
MAX_KERNELS = 30
MAX_NAME = 200

_PROFILERS = (profile, emit_nvtx, emit_itt, _KinetoProfile)


class Profiling:
    """Counts the steps that call backward() and profiles once, after WARM_UP of them."""

    name = "profiling"

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._profiler: torch.profiler.profile | None = None
        self._begins = 0
        self._seen = -1
        self._over = False
        self._ours = False

    def attach(self, guard: Callable[..., Any]) -> list[Any]:
        made = [patch.method(kind, "__init__", before=guard(self._program_makes_one)) for kind in _PROFILERS]
        return [self, *made, patch.backward(before=guard(self._backward))]

    def remove(self) -> None:
        """Stops Ammeter's profiler if it still runs, without reading its measurements."""
        self._over = True
        profiler, self._profiler = self._profiler, None
        if profiler is not None:
            profiler.stop()

    def _backward(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        """Counts each step once, independent of its number of backward passes."""
        step = self._session.row.step
        if self._over or step == self._seen:
            return
        self._seen = step
        self._begins += 1
        if self._begins == WARM_UP:
            self._start()
        elif self._begins == WARM_UP + STEPS:
            self._finish()

    def _start(self) -> None:
        if _profiler_enabled() or any(_is_profiler(candidate) for candidate in gc.get_objects()):
            self._refuse("the program has a profiler of its own")
            return
        self._ours = True
        try:
            self._profiler = torch.profiler.profile()
            self._profiler.start()
        finally:
            self._ours = False

    def _finish(self) -> None:
        profiler = self._profiler
        self.remove()
        if profiler is not None:
            self._session.emit("kernels.profiled", {"steps": STEPS, "kernels": _kernels(profiler)})

    def _program_makes_one(self, _: tuple[Any, ...], __: dict[str, Any]) -> None:
        if self._profiler is not None and not self._ours:
            self.remove()
            self._refuse("the program has made a profiler meanwhile")

    def _refuse(self, why: str) -> None:
        self._over = True
        self._session.emit("kernels.profiled", {"steps": 0, "kernels": [], "refused": why})


def _is_profiler(thing: Any) -> bool:
    """Whether an object is a profiler. Only its type is examined, so no code of the object runs."""
    return issubclass(type(thing), _PROFILERS)


def _kernels(profiler: torch.profiler.profile) -> list[dict[str, Any]]:
    """The MAX_KERNELS slowest entries: kernels of a device, else operators of the CPU."""
    rows = [_row(average) for average in profiler.key_averages()]
    devices = [row for row in rows if row["device"] != "cpu"]
    rows = sorted(devices or rows, key=lambda row: -float(row["seconds"]))
    return rows[:MAX_KERNELS]


def _row(average: Any) -> dict[str, Any]:
    device = str(average.device_type).rpartition(".")[2].lower()
    micros = average.self_cpu_time_total if device == "cpu" else average.self_device_time_total
    name = str(average.key)[:MAX_NAME]
    return {"name": name, "calls": int(average.count), "seconds": float(micros) / 1e6, "device": device}
