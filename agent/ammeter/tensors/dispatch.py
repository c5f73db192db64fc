"""Reads gradients on the CPU with the compiled reader if installed, else with torch.

Both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import cpu
from ammeter.tensors.native import Reader

Array = npt.NDArray[np.float64]


class Host:
    """Reads one set of real, dense, floating-point CPU tensors at every step; stores none."""

    def __init__(self) -> None:
        self._reader = Reader()

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors match the last ones in layout and each is in one piece."""
        return self._reader.fits(tensors)

    def read(self, tensors: Sequence[torch.Tensor]) -> Array:
        """Returns float64[n, COLUMNS], all statistics of each tensor."""
        results = self._reader.read(tensors)
        return cpu.read(tensors) if results is None else results

    def norms(self, tensors: Sequence[torch.Tensor]) -> Array:
        """Returns float64[n], the L2 norm of each; not finite exactly if an element is not."""
        results = self._reader.norms(tensors)
        return _norms(tensors) if results is None else results


def _norms(tensors: Sequence[torch.Tensor]) -> Array:
    float32_norms = cpu.norms(tensors).numpy()
    results = float32_norms.astype(np.float64)
    for at in cpu.doubtful(float32_norms):
        results[at] = cpu.norm(tensors[at])
    return results
