"""Numbers that break careless arithmetic, and what a reading of them has to be, by numpy in wider arithmetic."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import COLUMNS, NORM
from ammeter.tensors.exponents import BINS, HIGHEST, LOWEST, NONFINITE, ZERO

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = {4: torch.int32, 2: torch.int16, 8: torch.int64}
NAN, INF = math.nan, math.inf


def payload(bits: int) -> float:
    """A NaN with these float32 bits."""
    return float(np.frombuffer(struct.pack("<I", bits), "<f4")[0])


HOSTILE: dict[str, list[float]] = {
    "nothing": [],
    "one element": [-7.0],
    "one zero": [0.0],
    "zeros of both signs": [0.0, -0.0, 0.0] * 7,
    "ordinary numbers of every size": [(-1) ** k * 1.37 * 2.0**k for k in range(-30, 30)],
    "subnormals of float16": [2.0**-24, -(2.0**-20), 2.0**-15, 0.0, 1.0, 2.0**-14 - 2.0**-24],
    "around the smallest normal float16": [2.0**-14, -(2.0**-14), 2.0**-14 * (1 - 2.0**-24), 2.0**-14 * (1 + 2.0**-8)],
    "below float16": [2.0**-25, 2.0**-26, -(2.0**-30), 3e-9],
    "around the limit of the grid": [0.125, 0.125 - 2.0**-24, 0.125 - 2.0**-26, -0.124, 0.126, 2.0**-10 + 2.0**-25],
    "subnormals of float32 and bfloat16": [2.0**-149, -(2.0**-140), 2.0**-130, 0.0, 1e-40],
    "only subnormals of float32": [1e-40] * 40,
    "squares that overflow float32": [3.4e38, -1e38, 3e38] * 9,
    "squares that vanish in float32": [1e-25, -3e-26, 0.0, 1e-30],
    "both at once": [1e30, 1e-30, 3e-40],
    "a NaN in the last place": [1.0] * 36 + [NAN],
    "NaNs with payloads and signs": [payload(0x7FC0A3A3), payload(0xFFFFFFFF), payload(0x7F800001), 0.0, 2.0],
    "infinities of both signs": [INF, -INF, 0.0, 1e-40, 5.0],
    "both kinds of what is not finite": [NAN, -INF, 3.0, 0.01],
    "nothing finite": [NAN] * 20 + [INF],
}


def hostile(dtype: torch.dtype) -> list[torch.Tensor]:
    """The cases in a dtype; what does not fit becomes infinite, zero or rounded, as in a training run."""
    return [torch.tensor(values, dtype=torch.float64).to(dtype) for values in HOSTILE.values()]


def random_bits(dtype: torch.dtype, count: int, seed: int) -> torch.Tensor:
    """Any pattern, each as likely."""
    size = torch.tensor([], dtype=dtype).element_size()
    raw = np.random.default_rng(seed).integers(0, 256, count * size, np.uint8)
    return torch.from_numpy(raw).view(dtype)


def reference(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.float64]:
    """float64[n, COLUMNS]"""
    return np.array([_row(tensor.double().numpy().reshape(-1)) for tensor in tensors], np.float64).reshape(-1, COLUMNS)


def _row(values: npt.NDArray[np.float64]) -> list[float]:
    size = np.abs(values)
    finite, small = np.isfinite(values), (values != 0) & (size < 2.0**-3)
    with np.errstate(over="ignore", invalid="ignore"):
        norm = float(np.sqrt(np.square(values.astype(np.longdouble)).sum()))
    grid = np.ldexp(size[small], 24)
    return [
        norm,
        size[finite].max(initial=0),
        np.isnan(values).sum(),
        np.isinf(values).sum(),
        (values == 0).sum(),
        ((values != 0) & (size < 2.0**-14)).sum(),
        small.sum(),
        (grid == np.rint(grid)).sum(),
    ]


def assert_same(expected: npt.NDArray[np.float64], found: npt.NDArray[np.float64] | None, rel: float = 1e-12) -> None:
    """Counts and absmax equal to the bit, norms within rounding."""
    assert found is not None
    np.testing.assert_array_equal(expected[:, NORM + 1 :], found[:, NORM + 1 :])
    np.testing.assert_allclose(found[:, NORM], expected[:, NORM], rtol=rel, atol=0)


def spectrum_reference(tensors: Sequence[torch.Tensor]) -> npt.NDArray[np.int64]:
    """int64[BINS] of every element."""
    found = np.zeros(BINS, np.int64)
    for tensor in tensors:
        values = tensor.double().numpy().reshape(-1)
        finite = values[np.isfinite(values) & (values != 0)]
        exponents = np.frexp(finite)[1].astype(np.int64) - 1
        found += np.bincount(np.clip(exponents, LOWEST, HIGHEST) - LOWEST, minlength=BINS)
        found[ZERO] += np.sum(values == 0)
        found[NONFINITE] += np.sum(~np.isfinite(values))
    return found
