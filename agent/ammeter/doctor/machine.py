"""Checks Python, torch, the GPU and the readers of gradients.

torch is imported for the checks and may be missing.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Iterator
from types import ModuleType

from ammeter._version import __version__
from ammeter.doctor import half_convolution, known_bugs
from ammeter.doctor.line import Line, fail, ok, warn

OLDEST_TORCH = (2, 4)


def lines() -> Iterator[Line]:
    yield ok("ammeter", f"{__version__} in {sys.prefix}")
    yield _system()
    torch = _torch()
    if isinstance(torch, Line):
        yield torch
        return
    yield _version(torch)
    yield _gpu(torch)
    yield from _readers(torch.cuda.is_available())
    if torch.cuda.is_available():
        yield from half_convolution.lines(torch)
    yield from known_bugs.lines(torch)


def _system() -> Line:
    text = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return fail("python", text, "use Linux: the journal needs its record locks")
    return ok("python", text)


def _torch() -> ModuleType | Line:
    try:
        return importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001 - a broken torch can raise anything
        remedy = "install torch in this Python, or run ammeter doctor with the Python that trains"
        return fail("torch", f"cannot be imported ({type(error).__name__}: {error})", remedy)


def _version(torch: ModuleType) -> Line:
    version = str(torch.__version__)
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers and (int(numbers[1]), int(numbers[2])) < OLDEST_TORCH:
        return fail("torch", version, f"update it to {'.'.join(map(str, OLDEST_TORCH))} or newer")
    return ok("torch", version)


def _gpu(torch: ModuleType) -> Line:
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
        return ok("device", f"{torch.cuda.device_count()} x {', '.join(names)}, CUDA {torch.version.cuda}")
    if torch.version.cuda is not None:
        remedy = "run nvidia-smi: the driver may be missing or too old, or CUDA_VISIBLE_DEVICES may hide the GPU"
        return warn("device", f"torch is built for CUDA {torch.version.cuda}, but finds no GPU", remedy)
    return ok("device", "CPU; torch is built without CUDA")


def _readers(cuda: bool) -> Iterator[Line]:
    """Reports the gradient reader of each device that is present."""
    from ammeter import tensors

    for device, reader in tensors.available().items():
        if device == "cuda" and not cuda:
            continue
        about = f"gradients on {device.upper()}"
        if "torch's operators" not in reader:
            yield ok(about, f"read by {reader}")
        elif device == "cpu":
            remedy = "to read all gradients at every step, install a C compiler and then ammeter again"
            yield warn(about, f"read by {reader}", remedy)
        else:
            yield warn(about, f"read by {reader}", "to read all gradients at every step: pip install triton")
