"""What a goodbye says of a process's end: by what it was ended, in one word. What is not known is not claimed."""

from __future__ import annotations

import re

from ammeter.wire.frames import ENDED_BY, Bye

UNKNOWN, SILENCE = "unknown", "silence"

DEVICE, PROCESS = "device-memory", "process-memory"

ASKED = ("sigterm", "job", "slurm", "kubernetes", "time-limit")
"""Somebody or something told it to end: nothing is broken, and the run has to go on somewhere."""

OUT_OF_MEMORY = (DEVICE, PROCESS)
"""It raised for want of memory."""

_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")

_DEVICE_ERRORS = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "torch.cuda.memory.OutOfMemoryError")
_PROCESS_ERRORS = (
    "MemoryError",
    "numpy._core._exceptions._ArrayMemoryError",
    "numpy.core._exceptions._ArrayMemoryError",
)
_TORCHS_ERRORS = ("RuntimeError", "torch.AcceleratorError")
"""What torch raises for an error of CUDA, and for one of its allocator for the CPU."""

_OF_DEVICE = re.compile(r"(CUDA|HIP) (error: )?out of memory")
_OF_PROCESS = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")


def ended_by(bye: Bye) -> str:
    """One of wire.ENDED_BY, DEVICE, PROCESS, 'sigkill', 'crash', 'error', 'exit' or UNKNOWN; '' for an end that is
    none of ours."""
    if bye.reason == "exception":
        return _by_error(bye.message)
    if bye.reason not in ("lost", "signal"):
        return ""
    if bye.ended_by in ENDED_BY:
        return bye.ended_by
    return "sigterm" if bye.reason == "signal" else _by_words(bye.message)


def _by_words(how: str) -> str:
    """Of an agent that says no more than the words."""
    if "OOM killer" in how:
        return "oom-killer"
    if any(name in how for name in _CRASHES):
        return "crash"
    if "SIGKILL" in how or how.endswith("exit code 137"):
        return "sigkill"
    if "SIGTERM" in how or how.endswith("exit code 143"):
        return "sigterm"
    if how.endswith("exit code 1"):
        return "error"
    return "exit" if "exit code" in how else UNKNOWN


def _by_error(message: str) -> str:
    """By the type of the error, which stands before the first colon."""
    kind, _, said = message.partition(":")
    kind = kind.strip()
    if kind in _DEVICE_ERRORS or (kind in _TORCHS_ERRORS and _OF_DEVICE.search(said)):
        return DEVICE
    if kind in _PROCESS_ERRORS or (kind in _TORCHS_ERRORS and _OF_PROCESS.search(said)):
        return PROCESS
    return ""
