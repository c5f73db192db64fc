"""Reading gradients on a GPU, and a check of the kernels against torch's operators."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from ammeter.tensors.cuda import KINDS, NORM_ERROR, Device, rows
from bench.stats.timing import REPEATS, Timing, dtype_name, gradients

PLAIN = "ammeter, everything"
"""The reading that each step may need."""


def time_all() -> list[Timing]:
    """300 tensors of 1 GB together, in each dtype."""
    timings = []
    for dtype in KINDS:
        tensors = gradients(300, 2**30 // dtype.itemsize // 300, dtype, "cuda")
        timings += time_ways(tensors, f"300, 1 GB of {dtype_name(dtype)}")
    return timings


def time_ways(tensors: list[torch.Tensor], description: str) -> list[Timing]:
    size = sum(tensor.nbytes for tensor in tensors)
    source = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
    target, reader = torch.empty_like(source), Device()
    copy_seconds = median_seconds(lambda: target.copy_(source))
    memory_rate = 2 * size / copy_seconds / 1e9
    ways: dict[str, Callable[[], object]] = {
        PLAIN: lambda: reader.read(tensors),
        "ammeter, everything and the spectrum": lambda: reader.read_with_spectrum(tensors),
        "torch._foreach_norm": lambda: torch._foreach_norm(tensors, 2),
    }
    copy = Timing("memory once: copy on the device", description, copy_seconds, 2 * size, memory_rate)
    return [
        copy,
        *(Timing(name, description, median_seconds(read), size, memory_rate) for name, read in ways.items()),
    ]


def median_seconds(read: Callable[[], object]) -> float:
    """Median duration of a reading on the device."""
    for _ in range(3):
        read()
    durations = []
    for _ in range(REPEATS):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        began.record()
        read()
        ended.record()
        ended.synchronize()
        durations.append(float(began.elapsed_time(ended)) / 1e3)
    return median(durations)


def check(elements: int = 3_000_001) -> list[str]:
    """Errors of the kernels: numbers that differ from torch's operators, and readings that synchronise.

    elements: of the largest tensor, at least 77.
    """
    errors = []
    for dtype in KINDS:
        random = torch.randint(0, 256, (elements * dtype.itemsize,), dtype=torch.uint8, device="cuda").view(dtype)
        tensors = [random, random[1:77], random[16:], *gradients(20, 5_000, dtype, "cuda"), random[:0]]
        reader = Device()
        reader.read(tensors)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            read = reader.read(tensors)
        except RuntimeError as error:
            errors.append(f"{dtype}: a reading synchronises with the device: {error}")
            continue
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if reader.slow:
            errors.append(f"{dtype}: the kernels do not run: {reader.slow}")
            continue
        found, expected = read.cpu().numpy(), rows(tensors).cpu().numpy()
        if not (
            np.array_equal(found[:, 1:], expected[:, 1:])
            and np.allclose(found[:, 0], expected[:, 0], rtol=NORM_ERROR, atol=0, equal_nan=True)
        ):
            errors.append(f"{dtype}: the kernels and torch's operators differ by {np.abs(found - expected).max(0)}")
    return errors
