"""Gradient statistics with plain torch operators, on any device; on CPU these are the fast ones.

Norms are one foreach call for all tensors. The rest reads every gradient several times and is sampled by the
governor. Inputs are dense, real, floating-point tensors; nothing here changes or keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

SUBNORMAL = 2.0**-14
"""Smallest normal float16 (IEEE 754 binary16). Below it float16 loses bits, below 2^-24 everything."""

SPACING = 2.0**-24
"""Smallest positive float16; every float16, and every sum of float16 this small, is a multiple of it."""

GRID_SAMPLE = 4096
GRID_LIMIT = 2.0**-3
"""Only elements below it are asked for the grid: a float32 of 0.5 is a multiple of 2^-24 by nature."""


class Full(NamedTuple):
    """What one full reading of a gradient says; counts are elements."""

    absmax: float
    zeros: int
    subnormals: int
    fp16_grid: float


def norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """float32[n]: the L2 norm of each gradient, accumulated in float32 or wider. All on one device."""
    wide = [each if each.dtype in _WIDE else each.float() for each in gradients]
    return torch.stack([norm.to(torch.float32) for norm in torch._foreach_norm(wide, 2)])


def nonfinite(gradient: torch.Tensor) -> tuple[int, int]:
    """(NaN elements, infinite elements) of a gradient on the CPU."""
    nans = int(torch.isnan(gradient).sum())
    return nans, int(torch.isinf(gradient).sum())


def full(gradient: torch.Tensor) -> Full:
    """Reads one finite gradient on the CPU. fp16_grid is NaN when no element is small and not zero."""
    if gradient.numel() == 0:
        return Full(0.0, 0, 0, float("nan"))
    low, high = torch.aminmax(gradient)
    zeros = gradient.numel() - int(torch.count_nonzero(gradient))
    small = int(torch.lt(gradient.abs(), SUBNORMAL).sum())
    return Full(max(-float(low), float(high)), zeros, small - zeros, _on_grid(gradient))


def _on_grid(gradient: torch.Tensor) -> float:
    flat = gradient.reshape(-1)
    sample = flat[:: max(1, flat.numel() // GRID_SAMPLE)].double().numpy()
    small = sample[(sample != 0) & (np.abs(sample) < GRID_LIMIT)]
    if small.size == 0:
        return float("nan")
    return float(np.mean(small / SPACING == np.rint(small / SPACING)))


_WIDE = (torch.float32, torch.float64)
