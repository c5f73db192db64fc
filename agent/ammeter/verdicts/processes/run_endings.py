"""Classifies the end of a process from its final record, in one word.

An unknown cause is reported as unknown, not guessed.
"""

from __future__ import annotations

import re

from ammeter.wire.frames import ENDED_BY, Bye

UNKNOWN, SILENCE = "unknown", "silence"

DEVICE, PROCESS = "device-memory", "process-memory"

REQUESTED = ("sigterm", "job", "slurm", "kubernetes", "time-limit")
"""Ends that a person or a scheduler requested. The training is not broken, and must be continued elsewhere."""

OUT_OF_MEMORY = (DEVICE, PROCESS)
"""Ends by an exception for lack of memory."""

_CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE")

_DEVICE_ERRORS = ("torch.OutOfMemoryError", "torch.cuda.OutOfMemoryError", "torch.cuda.memory.OutOfMemoryError")
_PROCESS_ERRORS = (
    "MemoryError",
    "numpy._core._exceptions._ArrayMemoryError",
    "numpy.core._exceptions._ArrayMemoryError",
)
_TORCH_ERRORS = ("RuntimeError", "torch.AcceleratorError")
"""Exception types of torch for CUDA errors and for errors of its CPU allocator."""

_DEVICE_MESSAGE = re.compile(r"(CUDA|HIP) (error: )?out of memory")
_PROCESS_MESSAGE = re.compile(r"DefaultCPUAllocator: (can't allocate|not enough) memory")


def ended_by(bye: Bye) -> str:
    """Classifies the end of a process.

    Returns:
        One of wire.ENDED_BY, DEVICE, PROCESS, 'sigkill', 'crash', 'error', 'exit' or UNKNOWN. The empty string for ends
        outside these classes: a normal end, also one by os._exit(0), or an exception other than lack of memory.
    """
    if bye.reason == "exception":
        return _by_error(bye.message)
    if bye.reason not in ("lost", "signal"):
        return ""
    if bye.ended_by in ENDED_BY:
        return bye.ended_by
    return "sigterm" if bye.reason == "signal" else _by_message(bye.message)


def _by_message(how: str) -> str:
    """Classifies by the text of the record, for agents that do not write `ended_by`."""
    if "OOM killer" in how:
        return "oom-killer"
    if any(name in how for name in _CRASHES):
        return "crash"
    if "SIGKILL" in how or how.endswith("exit code 137"):
        return "sigkill"
    if "SIGTERM" in how or how.endswith("exit code 143"):
        return "sigterm"
    if how.endswith("exit code 0"):
        return ""
    if how.endswith("exit code 1"):
        return "error"
    return "exit" if "exit code" in how else UNKNOWN


def _by_error(message: str) -> str:
    """Classifies by the type of the exception, which precedes the first colon."""
    kind, _, text = message.partition(":")
    kind = kind.strip()
    if kind in _DEVICE_ERRORS or (kind in _TORCH_ERRORS and _DEVICE_MESSAGE.search(text)):
        return DEVICE
    if kind in _PROCESS_ERRORS or (kind in _TORCH_ERRORS and _PROCESS_MESSAGE.search(text)):
        return PROCESS
    return ""
