"""How large the elements of many tensors are: a histogram of their binary exponents, from a sample on the CPU.

A histogram of all elements would cost thirty times as much as reading them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors.hidden_reads import unseen

LOWEST, HIGHEST = -40, 16
"""Exponents with a bin of their own; smaller and larger elements are counted in the outermost bins."""

ZERO, NONFINITE = HIGHEST - LOWEST + 1, HIGHEST - LOWEST + 2
"""Bins of what has no exponent."""

BINS = NONFINITE + 1

SAMPLE = 65_536
"""Elements that are read at most."""


def spectrum(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    """int64[BINS]: in bin e - LOWEST the elements with floor(log2|x|) = e, then the zeros, then NaN and Inf.

    Of real, floating-point tensors with numbers on the CPU. Where they have more than SAMPLE elements in all, of evenly
    spaced ones, more in a larger tensor, the same in every call.
    """
    found = np.zeros(BINS, np.int64)
    for elements in unseen(lambda: _sampled(tensors), tensors):
        found += np.bincount(_bins(elements), minlength=BINS)
    return found


def _sampled(tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[np.float64]]:
    """The elements, of each dtype together."""
    total = sum(each.numel() for each in tensors)
    every = 1 if total <= SAMPLE else math.ceil(total / max(1, SAMPLE - len(tensors)))
    parts: dict[torch.dtype, list[torch.Tensor]] = {}
    for each in tensors:
        parts.setdefault(each.dtype, []).append(each.detach().reshape(-1)[:: _beside(every, each)])
    return [torch.cat(group).double().numpy() for group in parts.values()]


def _beside(every: int, tensor: torch.Tensor) -> int:
    """A distance at least as large that does not fall on the same columns of the tensor in each of its rows."""
    columns = tensor.shape[-1] if tensor.dim() and every > 1 else 1
    while math.gcd(every, columns) > 1:
        every += 1
    return every


def _bins(elements: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Every float32, float16 and bfloat16 is a normal float64, so its exponent is a field of its bits."""
    bits = elements.view(np.int64) & 0x7FFF_FFFF_FFFF_FFFF
    exponents = (bits >> 52) - 1023
    bins: npt.NDArray[np.int64] = np.clip(exponents, LOWEST, HIGHEST) - LOWEST
    bins[bits == 0] = ZERO
    bins[exponents == 1024] = NONFINITE
    return bins
