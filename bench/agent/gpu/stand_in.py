"""Takes the place of CUDA for a dry run: tensors of the device "cuda" are on the CPU, and nothing is asynchronous.

It only shows that each line of the benchmark and its tests can be executed. No number of such a run says anything.
"""

from __future__ import annotations

import functools
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NAME = "stand-in for a GPU"
UUID = uuid.UUID(int=1)
GIB = 2**30

_sync_mode = "default"


def install() -> None:
    """Replaces CUDA in this process, for good."""
    for name, function in _FUNCTIONS.items():
        setattr(torch.cuda, name, function)
    torch.accelerator.is_available = lambda: False  # a torch for CUDA would look for its driver
    torch.version.cuda = "0.0"
    torch.autocast.__init__ = _on_cpu(torch.autocast.__init__)  # type: ignore[method-assign]
    torch.amp.GradScaler.__init__ = _on_cpu(torch.amp.GradScaler.__init__)  # type: ignore[method-assign]
    torch.optim.AdamW.__init__ = _not_capturable(torch.optim.AdamW.__init__)  # type: ignore[method-assign]
    torch.profiler.profile = Profiler  # type: ignore[misc, assignment]
    torch.compile = functools.partial(_compile, torch.compile)
    sys.modules["pynvml"] = _nvml()
    OnCpu().__enter__()  # type: ignore[no-untyped-call]


class OnCpu(TorchFunctionMode):
    """Calls that name the device "cuda" get the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if _sync_mode == "error" and func in (torch.Tensor.item, torch.Tensor.tolist, torch.Tensor.cpu):
            _raise_in_the_program()
        options = {name: _cpu(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        return func(*((args[0], *map(_cpu, args[1:])) if func is torch.Tensor.to else args), **options)


def _cpu(device: Any) -> Any:
    return torch.device("cpu") if isinstance(device, str | torch.device) and str(device).startswith("cuda") else device


def _raise_in_the_program() -> None:
    """What Ammeter and optimizers do with tensors of the CPU does not wait, and differs from what they do on a GPU."""
    frame = sys._getframe(2)
    while frame and frame.f_back:
        if frame.f_globals.get("__name__", "").startswith(("ammeter.", "torch.optim.")):
            return
        frame = frame.f_back
    raise RuntimeError("called a synchronizing CUDA operation")


def _on_cpu(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def on_cpu(self: Any, device: Any = "cuda", *args: Any, **options: Any) -> None:
        device = options.pop("device_type", options.pop("device", device))
        init(self, "cpu" if str(device).startswith("cuda") else device, *args, **options)

    return on_cpu


def _not_capturable(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def not_capturable(self: Any, *args: Any, **options: Any) -> None:
        options.pop("capturable", None)
        init(self, *args, **options)

    return not_capturable


def _compile(compiler: Any, model: Any, **_: Any) -> Any:
    return compiler(model, backend="eager")


class Event:
    """Has happened as soon as it is recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._time = 0.0

    def record(self, stream: Any = None) -> None:
        self._time = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def elapsed_time(self, end: Event) -> float:
        return max(1e-6, 1e3 * (end._time - self._time))


class Stream:
    cuda_stream = 0

    def query(self) -> bool:
        return True

    def synchronize(self) -> None: ...

    def wait_stream(self, other: Stream) -> None: ...


class CUDAGraph:
    """Captures nothing, and replays nothing."""

    def replay(self) -> None: ...


class Profiler:
    """Counts ten launches and no waiting."""

    def __init__(self, **_: Any) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def key_averages(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(key="cudaLaunchKernel", count=10)]


@contextmanager
def _block(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _set_sync_debug_mode(mode: str | int) -> None:
    global _sync_mode
    _sync_mode = str(mode)


def _nvml() -> ModuleType:
    """A library of NVIDIA's with one device."""
    module = ModuleType("pynvml")
    answers: dict[str, Any] = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByUUID": 1,
        "nvmlDeviceGetIndex": 0,
        "nvmlDeviceGetName": NAME,
        "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=50),
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=GIB, total=2 * GIB),
        "nvmlDeviceGetPowerUsage": 100_000,
        "nvmlDeviceGetTemperature": 40,
    }
    for name, answer in answers.items():
        setattr(module, name, functools.partial(_answer, answer))
    return module


def _answer(answer: Any, *_: Any, **__: Any) -> Any:
    return answer


_FUNCTIONS: dict[str, Any] = {
    "is_available": lambda: True,
    "is_initialized": lambda: False,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda _=None: NAME,
    "get_device_capability": lambda _=None: (9, 0),
    "get_device_properties": lambda _=None: SimpleNamespace(
        name=NAME, uuid=UUID, total_memory=2 * GIB, major=9, minor=0, multi_processor_count=1
    ),
    "mem_get_info": lambda _=None: (GIB, 2 * GIB),
    "memory_allocated": lambda _=None: 0,
    "max_memory_allocated": lambda _=None: 0,
    "memory_stats": lambda _=None: {},
    "reset_peak_memory_stats": lambda _=None: None,
    "empty_cache": lambda: None,
    "synchronize": lambda _=None: None,
    "is_current_stream_capturing": lambda: False,
    "current_stream": lambda _=None: Stream(),
    "get_rng_state": lambda _=None: torch.get_rng_state(),
    "set_sync_debug_mode": _set_sync_debug_mode,
    "get_sync_debug_mode": lambda: _sync_mode,
    "Event": Event,
    "Stream": Stream,
    "CUDAGraph": CUDAGraph,
    "stream": _block,
    "graph": _block,
}
