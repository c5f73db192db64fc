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


def _system() -> Line:
    said = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return fail("python", said, "use Linux: journals rely on its record locks")
    return ok("python", said)


def _torch() -> ModuleType | Line:
    try:
        return importlib.import_module("torch")
    except Exception as error:  # noqa: BLE001 - a broken torch can raise anything
        remedy = "install torch in this Python, or run the doctor in the one that trains"
        return fail("torch", f"cannot be imported ({type(error).__name__}: {error})", remedy)


def _version(torch: ModuleType) -> Line:
    said = str(torch.__version__)
    found = re.match(r"(\d+)\.(\d+)", said)
    if found and (int(found[1]), int(found[2])) < OLDEST_TORCH:
        return fail("torch", said, f"update it to {'.'.join(map(str, OLDEST_TORCH))} or newer")
    return ok("torch", said)


def _gpu(torch: ModuleType) -> Line:
    if torch.cuda.is_available():
        names = sorted({torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count())})
        return ok("device", f"{torch.cuda.device_count()} x {', '.join(names)}, CUDA {torch.version.cuda}")
    if torch.version.cuda is not None:
        remedy = "look at nvidia-smi: the driver may be missing, too old, or hidden by CUDA_VISIBLE_DEVICES"
        return warn("device", f"this torch is made for CUDA {torch.version.cuda}, and finds no GPU", remedy)
    return ok("device", "CPU; this torch is made without CUDA")


def _readers(cuda: bool) -> Iterator[Line]:
    """Reports the gradient reader of each device that is present."""
    from ammeter import tensors

    for device, how in tensors.available().items():
        if device == "cuda" and not cuda:
            continue
        about = f"gradients on {device.upper()}"
        if "torch's operators" not in how:
            yield ok(about, f"read by {how}")
        elif device == "cpu":
            yield warn(
                about, f"read by {how}", "install a C compiler, then ammeter again: all is read at every step then"
            )
        else:
            yield warn(about, f"read by {how}", "pip install triton: all is read at every step then")
