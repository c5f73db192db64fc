"""Gradient statistics with torch and numpy operators, for machines without a compiled reader.

Norms are one foreach call for all tensors, on any device. The other statistics read every gradient many times. Inputs
are real, floating-point tensors with values; they are neither changed nor stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import ABSMAX, COLUMNS, NORM

MIN_FLOAT32_NORM = 2.0**-63
"""A smaller norm was summed from squares that are subnormal or zero in float32."""

MIN_FLOAT64_NORM = 2.0**-450
"""A smaller float64 norm may have lost squares that are subnormal."""

CHUNK_ELEMENTS = 2**16
"""Elements that are converted to float64 at a time."""


class Bits(NamedTuple):
    """Bit patterns of non-negative numbers, which sort as the numbers do.

    rounder is the constant whose addition rounds to multiples of 2^-24.
    """

    integer: torch.dtype
    infinite: int
    subnormal: int
    small: int
    rounder: float


BITS = {
    torch.float32: Bits(torch.int32, 0x7F800000, 0x38800000, 0x3E000000, 0.75),
    torch.float64: Bits(torch.int64, 0x7FF0 << 48, 0x3F10 << 48, 0x3FC0 << 48, 1.5 * 2**28),
}


def read(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
    """Returns float64[n, COLUMNS] of real, floating-point CPU tensors, equal to native.Reader.read.

    Takes about twenty times as long.
    """
    return np.array([_row(tensor.detach()) for tensor in tensors], np.float64).reshape(-1, COLUMNS)


def norms(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns float32[n], the L2 norm of each gradient, accumulated in float32 or wider.

    All gradients are on one device; none is copied. If doubtful() marks a norm, its squares left the range of float32
    and norm() gives the exact value.
    """
    dtypes = {gradient.dtype for gradient in gradients}
    if dtypes == {torch.float32}:
        return torch.stack(torch._foreach_norm(list(gradients), 2))
    results: list[torch.Tensor | None] = [None] * len(gradients)
    for dtype in dtypes:
        at = [index for index, gradient in enumerate(gradients) if gradient.dtype == dtype]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for index, norm in zip(at, torch._foreach_norm([gradients[i] for i in at], 2, dtype=wide), strict=True):
            results[index] = norm if wide is torch.float32 else norm.to(torch.float32)
    return torch.stack([norm for norm in results if norm is not None])


def doubtful(norms: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Returns the indices at which norms() may be wrong.

    Such norms are not finite although the gradient may be, or too small to be exact.
    """
    if norms.min() >= MIN_FLOAT32_NORM and norms.max() < math.inf:  # both False for NaN
        return _NOWHERE
    return np.flatnonzero(~((norms >= MIN_FLOAT32_NORM) & (norms < np.inf)))


def norm(gradient: torch.Tensor) -> float:
    """Returns the L2 norm of a CPU gradient in float64 precision.

    The norm is NaN or Inf only if an element is.
    """
    low, high = torch.aminmax(gradient)
    largest = max(abs(float(low)), abs(float(high)))
    if not 0 < largest < math.inf:
        return largest
    chunks = torch.split(gradient.reshape(-1), CHUNK_ELEMENTS)
    return largest * math.sqrt(sum(float((chunk.double() / largest).square().sum()) for chunk in chunks))


def _row(tensor: torch.Tensor) -> npt.NDArray[np.float64]:
    row = np.zeros(COLUMNS)
    if tensor.numel():
        with np.errstate(invalid="ignore"):
            chunk_rows = np.array(
                [_chunk_row(chunk) for chunk in torch.split(tensor.reshape(-1), CHUNK_ELEMENTS)], np.float64
            )
        row += chunk_rows.sum(0)
        row[ABSMAX], row[NORM] = chunk_rows[:, ABSMAX].max(), math.sqrt(row[NORM])
        if tensor.dtype is torch.float64 and not MIN_FLOAT64_NORM <= row[NORM] < math.inf:
            row[NORM] = norm(tensor)
    return row


def _chunk_row(chunk: torch.Tensor) -> tuple[float, ...]:
    """Returns a row of read() with the sum of squares in place of the norm.

    Counts use bits, because a program may flush subnormals to zero.
    """
    wide = torch.float64 if chunk.dtype is torch.float64 else torch.float32
    bit_patterns = BITS[wide]
    magnitude = chunk.to(wide).abs()
    values, bits = magnitude.numpy(), magnitude.view(bit_patterns.integer).numpy()
    finite = bits < bit_patterns.infinite
    nans, infs = 0, chunk.numel() - _count(finite)
    largest = values.max(where=finite, initial=0) if infs else values.max()
    if infs:
        nans = _count(bits > bit_patterns.infinite)
    zeros, small = chunk.numel() - _count(bits), bits < bit_patterns.small
    nearest = ((values + bit_patterns.rounder) - bit_patterns.rounder).view(bits.dtype)
    length = float(torch.linalg.vector_norm(magnitude, dtype=torch.float64))
    return (
        length * length,  # ** would raise on overflow
        float(largest),
        nans,
        infs - nans,
        zeros,
        _count(bits < bit_patterns.subnormal) - zeros,
        _count(small) - zeros,
        _count(small & (nearest == bits)) - zeros,
    )


def _count(where: npt.NDArray[Any]) -> int:
    return int(np.count_nonzero(where))


_NOWHERE = np.zeros(0, np.int64)
