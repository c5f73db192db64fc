"""Histogram of the binary exponents of many tensors, from a sample on the CPU.

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
"""Bins of values without an exponent: zeros, and NaN or Inf."""

BINS = NONFINITE + 1

MAX_SAMPLED_ELEMENTS = 65_536
"""Maximum number of sampled elements."""


def spectrum(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    """Returns int64[BINS], the number of elements with floor(log2|x|) = e in bin e - LOWEST.

    The bins ZERO and NONFINITE count zeros, and NaN and Inf. The tensors are real, floating-point, with values, on the
    CPU. If they have more than MAX_SAMPLED_ELEMENTS elements in all, evenly spaced ones are read, more of a larger
    tensor, the same in every call.
    """
    counts = np.zeros(BINS, np.int64)
    for elements in unseen(lambda: _sampled(tensors), tensors):
        counts += np.bincount(_bins(elements), minlength=BINS)
    return counts


def _sampled(tensors: Sequence[torch.Tensor]) -> list[npt.NDArray[np.float64]]:
    """Returns the sampled elements, concatenated per dtype."""
    total = sum(map(torch.Tensor.numel, tensors))
    stride = 1 if total <= MAX_SAMPLED_ELEMENTS else math.ceil(total / max(1, MAX_SAMPLED_ELEMENTS - len(tensors)))
    parts: dict[torch.dtype, list[torch.Tensor]] = {}
    for tensor in tensors:
        parts.setdefault(tensor.dtype, []).append(tensor.detach().reshape(-1)[:: _coprime_stride(stride, tensor)])
    return [torch.cat(group).double().numpy() for group in parts.values()]


def _coprime_stride(stride: int, tensor: torch.Tensor) -> int:
    """Returns the next stride that is coprime to the number of columns.

    Samples therefore do not fall on the same columns in each row.
    """
    columns = tensor.shape[-1] if tensor.dim() and stride > 1 else 1
    while math.gcd(stride, columns) > 1:
        stride += 1
    return stride


def _bins(elements: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Returns the bin of each element from its exponent bits.

    Every float32, float16 and bfloat16 value is a normal float64.
    """
    bits = elements.view(np.int64) & 0x7FFF_FFFF_FFFF_FFFF
    exponents = (bits >> 52) - 1023
    bins: npt.NDArray[np.int64] = np.clip(exponents, LOWEST, HIGHEST) - LOWEST
    bins[bits == 0] = ZERO
    bins[exponents == 1024] = NONFINITE
    return bins
