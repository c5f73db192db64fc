"""Reading gradients on the CPU: compiled code, torch's norms, and plain torch operators."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch

from ammeter.tensors import cpu, native
from ammeter.tensors.cuda import KINDS
from bench.stats.timing import REPEATS, Timing, dtype_name, gradients

CACHE_BYTES = 64 * 2**20
"""Bytes that are written between two readings, more than the caches hold."""


def time_all() -> list[Timing]:
    """50 tensors of 100,000 elements outside the caches, in each dtype, and 50 of 1,000 inside."""
    torch.set_num_threads(1)
    timings = []
    for dtype in (*KINDS, torch.float64):
        timings += time_ways(gradients(50, 100_000, dtype), f"50 x 100,000 {dtype_name(dtype)}", cold=True)
    return timings + time_ways(gradients(50, 1_000, torch.float32), "50 x 1,000 float32, cached", cold=False)


def time_ways(tensors: list[torch.Tensor], description: str, *, cold: bool) -> list[Timing]:
    words, reader = [tensor.view(torch.int64) for tensor in tensors], native.Reader()
    size = sum(tensor.nbytes for tensor in tensors)
    ways: dict[str, Callable[[], object]] = {
        "memory once: torch.sum of each as int64": lambda: [word.sum() for word in words],
        "ammeter, everything": lambda: reader.read(tensors),
        "ammeter, norms": lambda: reader.norms(tensors),
        "torch._foreach_norm": lambda: torch._foreach_norm(tensors, 2),
        "ammeter without a compiler": lambda: cpu.read(tensors),
    }
    seconds = {name: median_seconds(read, cold=cold) for name, read in ways.items()}
    memory_rate = size / next(iter(seconds.values())) / 1e9
    return [Timing(name, description, duration, size, memory_rate) for name, duration in seconds.items()]


def median_seconds(read: Callable[[], object], *, cold: bool) -> float:
    """Median duration of a reading. cold: with the tensors outside the caches."""
    other_memory = torch.zeros(CACHE_BYTES // 4)
    durations = []
    for _ in range(REPEATS if cold else 10 * REPEATS):
        if cold:
            other_memory.add_(1)
        began = time.perf_counter()
        read()
        durations.append(time.perf_counter() - began)
    return median(durations)
