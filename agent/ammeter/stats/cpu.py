"""Gradient statistics with plain torch operators, on any device; on CPU these are the fast ones.

Norms are one foreach call for all tensors. The rest reads every gradient several times and is sampled by the
governor. Inputs are dense, real, floating-point tensors; nothing here changes or keeps them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ammeter.stats import ABSMAX, COLUMNS, NORM

SUBNORMAL = 2.0**-14
"""Smallest normal float16 (IEEE 754 binary16). Below it float16 loses bits, below 2^-24 everything."""

SPACING = 2.0**-24
"""Smallest positive float16; every float16, and every sum of float16 this small, is a multiple of it."""

TINY = 2.0**-63
"""A norm below it was summed from squares that are subnormal in float32 or vanished."""

TINY64 = 2.0**-450
"""A float64 norm below it may have lost squares that are subnormal."""

PART = 2**18
"""Elements that are widened to float64 at a time."""

GRID_SAMPLE = 4096
GRID_LIMIT = 2.0**-3
"""Only elements below it are asked for the grid: a float32 of 0.5 is a multiple of 2^-24 by nature."""


class _Bits(NamedTuple):
    """Patterns of non-negative numbers, which are in the numbers' order, and what rounds to multiples of SPACING."""

    integer: torch.dtype
    infinite: int
    subnormal: int
    small: int
    rounder: float


_BITS = {
    torch.float32: _Bits(torch.int32, 0x7F800000, 0x38800000, 0x3E000000, 0.75),
    torch.float64: _Bits(torch.int64, 0x7FF0 << 48, 0x3F10 << 48, 0x3FC0 << 48, 1.5 * 2**28),
}


class Full(NamedTuple):
    """What one full reading of a gradient says; counts are elements."""

    absmax: float
    zeros: int
    subnormals: int
    fp16_grid: float


def read(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
    """float64[n, COLUMNS] of real, floating-point tensors on the CPU: the numbers of native.Reader.read.

    Reads each tensor about ten times.
    """
    found: npt.NDArray[np.float64] = rows(tensors).numpy()
    for at, each in enumerate(tensors):
        if each.dtype is torch.float64 and each.numel() and not TINY64 <= found[at, NORM] < np.inf:
            found[at, NORM] = norm(each)
    return found


def rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """float64[n, COLUMNS] of tensors on one device, on that device and without waiting for it.

    The norm of float64 tensors is right where their squares stay in float64.
    """
    where = tensors[0].device if tensors else None
    empty = torch.zeros((0, COLUMNS), dtype=torch.float64, device=where)
    return torch.stack([_row(each.detach()) for each in tensors]) if tensors else empty


def norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """float32[n]: the L2 norm of each gradient, accumulated in float32 or wider. All on one device.

    No gradient is copied. Where doubtful() says so, squares left the range of float32: norm() knows better.
    """
    dtypes = {each.dtype for each in gradients}
    if dtypes == {torch.float32}:
        return torch.stack(torch._foreach_norm(list(gradients), 2))
    found: list[torch.Tensor | None] = [None] * len(gradients)
    for dtype in dtypes:
        at = [index for index, each in enumerate(gradients) if each.dtype == dtype]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for index, norm in zip(at, torch._foreach_norm([gradients[i] for i in at], 2, dtype=wide), strict=True):
            found[index] = norm if wide is torch.float32 else norm.to(torch.float32)
    return torch.stack([norm for norm in found if norm is not None])


def doubtful(norms: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Where norms() may be wrong: not finite although the gradient is, or too small to be exact."""
    if norms.min() >= TINY and norms.max() < math.inf:  # both False for NaN
        return _NOWHERE
    return np.flatnonzero(~((norms >= TINY) & (norms < np.inf)))


def norm(gradient: torch.Tensor) -> float:
    """The L2 norm of a gradient on the CPU to float64's precision; NaN or Inf only when an element is."""
    low, high = torch.aminmax(gradient)
    largest = max(abs(float(low)), abs(float(high)))
    if not 0 < largest < math.inf:
        return largest
    parts = torch.split(gradient.reshape(-1), PART)
    return largest * math.sqrt(sum(float((part.double() / largest).square().sum()) for part in parts))


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
    return Full(max(abs(float(low)), abs(float(high))), zeros, small - zeros, _on_grid(gradient))


def _row(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return torch.zeros(COLUMNS, dtype=torch.float64, device=tensor.device)
    parts = torch.stack([_part(each) for each in torch.split(tensor.reshape(-1), PART)])
    row = parts.sum(0)
    row[NORM] = row[NORM].sqrt()
    row[ABSMAX] = parts[:, ABSMAX].amax()
    return row


def _part(part: torch.Tensor) -> torch.Tensor:
    """A row of rows() with the sum of squares for the norm. Counts are by bits: a program may flush subnormals."""
    wide = torch.float64 if part.dtype is torch.float64 else torch.float32
    integer, infinite, subnormal, small, rounder = _BITS[wide]
    magnitude = part.to(wide).abs()
    bits = magnitude.view(integer)
    nearest = (magnitude + rounder) - rounder
    zeros, is_small = (bits == 0).sum(), bits < small
    found = (
        magnitude.double().square().sum(),
        magnitude.where(bits < infinite, 0).amax(),
        (bits > infinite).sum(),
        (bits == infinite).sum(),
        zeros,
        (bits < subnormal).sum() - zeros,
        is_small.sum() - zeros,
        (is_small & (nearest.view(integer) == bits)).sum() - zeros,
    )
    return torch.stack([each.double() for each in found])


_NOWHERE = np.zeros(0, np.int64)


def _on_grid(gradient: torch.Tensor) -> float:
    flat = gradient.reshape(-1)
    sample = flat[:: max(1, flat.numel() // GRID_SAMPLE)].double().numpy()
    small = sample[(sample != 0) & (np.abs(sample) < GRID_LIMIT)]
    if small.size == 0:
        return float("nan")
    return float(np.mean(small / SPACING == np.rint(small / SPACING)))
