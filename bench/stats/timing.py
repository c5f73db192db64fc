"""The duration of one way of reading gradients, and the inputs that all ways share."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bench.common.tables import Row

HEADINGS = ("what", "gradients", "microseconds", "GB/s", "times memory once")
REPEATS = 25


@dataclass(frozen=True)
class Timing:
    """One way of reading.

    Attributes:
        moved_bytes: Bytes read and written.
        memory_rate: GB/s of reading the same memory without computing anything.
    """

    way: str
    gradients: str
    seconds: float
    moved_bytes: int
    memory_rate: float

    @property
    def row(self) -> Row:
        rate = self.moved_bytes / self.seconds / 1e9
        times_memory = f"{self.memory_rate / rate:.2f}"
        return self.way, self.gradients, f"{self.seconds * 1e6:.1f}", f"{rate:.1f}", times_memory


def gradients(number: int, size: int, dtype: torch.dtype, device: str = "cpu") -> list[torch.Tensor]:
    """Tensors of ordinary gradient magnitudes that differ from one another."""
    torch.manual_seed(0)
    return [(torch.randn(size, device=device) * 10.0 ** (-2 - index % 5)).to(dtype) for index in range(number)]


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
