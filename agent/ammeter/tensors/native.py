"""Reads many CPU tensors in one pass with the compiled reading.c.

It takes about as long as one read of their memory and gives the same numbers as cpu.py. The library is compiled when
the package is installed; without it this module reads nothing.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import COLUMNS, cpu
from ammeter.tensors.hidden_reads import unseen
from ammeter.tensors.layout import FreedMemory, in_one_piece, layout_check

Array = npt.NDArray[np.float64]

LIBRARY = Path(__file__).with_name("libreading.so")
VERSION = 1
"""Version of the functions in reading.c and their signatures; a library of another version is not used."""

KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3}
"""Dtype numbers of reading.c."""

GIL_RELEASE_BYTES = 2**20
"""A read of this size takes 30 us or more and releases the GIL, so that other threads run meanwhile. A shorter call
would only wait to get the GIL back."""


class Reader:
    """Reads one set of tensors at every step and checks that their layout is unchanged.

    No tensor is stored. Not thread-safe.

    Args:
        level: the vector instructions to use, 0 for those of every processor; by default the best of this one.
    """

    def __init__(self, level: int | None = None) -> None:
        self._level = LEVEL if level is None else min(level, LEVEL)
        self._plan: _Plan | None = None

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether these tensors match the last ones in layout and each is in one piece."""
        return self._plan is not None and self._plan.fits(tensors)

    def read(self, tensors: Sequence[torch.Tensor]) -> Array | None:
        """Returns float64[n, COLUMNS] of real, floating-point CPU tensors; None without a library.

        Tensors in several pieces or of another dtype are read by cpu.read.

        Raises:
            Gone: a tensor's memory was freed.
        """
        return self._read(tensors, COLUMNS)

    def norms(self, tensors: Sequence[torch.Tensor]) -> Array | None:
        """Returns float64[n], the first column of read(), which is cheaper alone."""
        result = self._read(tensors, 1)
        return None if result is None else result[:, 0]

    def _read(self, tensors: Sequence[torch.Tensor], width: int) -> Array | None:
        if MISSING or not tensors:
            return None if MISSING else np.empty((0, width))
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if self._plan is None or not self._plan.fits(tensors):
                self._plan = None
                dense = [at for at, tensor in enumerate(tensors) if tensor.is_cpu and in_one_piece(tensor, KINDS)]
                if len(dense) == len(tensors):
                    self._plan = _Plan(tensors)
            if self._plan is not None:
                return self._plan.read(tensors, width, self._level)
        return _read_mixed(tensors, dense, width, self._level)


def read(tensors: Sequence[torch.Tensor]) -> Array | None:
    """Applies Reader.read to tensors that are read once."""
    return Reader().read(tensors)


def norms(tensors: Sequence[torch.Tensor]) -> Array | None:
    """Applies Reader.norms to tensors that are read once."""
    return Reader().norms(tensors)


class _Plan:
    """Cached properties of tensors in one piece each; only their addresses are read each time."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._number = len(tensors)
        self._has_same_layout = layout_check(tensors)
        self._counts = array("q", [tensor.numel() for tensor in tensors])
        self._kinds = bytes(KINDS[tensor.dtype] for tensor in tensors)
        self._out = {width: np.empty((len(tensors), width)) for width in (1, COLUMNS)}
        self._addresses = {width: out.ctypes.data for width, out in self._out.items()}
        self._calls = _CALLS[sum(tensor.nbytes for tensor in tensors) >= GIL_RELEASE_BYTES]

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        return len(tensors) == self._number and self._has_same_layout(*tensors)

    def read(self, tensors: Sequence[torch.Tensor], width: int, level: int) -> Array:
        pointers = array("Q", list(map(torch.Tensor.data_ptr, tensors)))
        counts, number = self._counts.buffer_info()
        if self._calls[width](level, number, pointers.buffer_info()[0], counts, self._kinds, self._addresses[width]):
            raise FreedMemory
        return self._out[width].copy()


def _read_mixed(tensors: Sequence[torch.Tensor], dense: list[int], width: int, level: int) -> Array:
    """Reads tensors in one piece with one call, the others with plain torch."""
    result = np.empty((len(tensors), width))
    if dense:
        chosen = [tensors[at] for at in dense]
        result[dense] = unseen(lambda: _Plan(chosen).read(chosen, width, level), chosen)
    for at in sorted(set(range(len(tensors))) - set(dense)):
        other = [tensors[at]]
        result[at] = unseen(lambda other=other: cpu.read(other), other)[0, :width]  # type: ignore[misc]
    return result


def _load() -> tuple[int, str, dict[bool, dict[int, Callable[..., int]]]]:
    """Returns (best level, reason for a missing library, releases the GIL? -> width -> function)."""
    if not LIBRARY.is_file():
        return 0, f"{LIBRARY.name} is not there: Ammeter was installed without a C compiler", {}
    try:
        kinds: dict[bool, Any] = {False: ctypes.PyDLL(str(LIBRARY)), True: ctypes.CDLL(str(LIBRARY))}
        version, compiled = kinds[True].ammeter_version(), kinds[True].ammeter_level()
    except (OSError, AttributeError) as error:
        return 0, f"{LIBRARY.name} does not load: {error}", {}
    if version != VERSION:
        return 0, f"{LIBRARY.name} is of version {version}, not {VERSION}: install Ammeter again", {}
    calls = {
        releases_gil: {1: library.ammeter_norms, COLUMNS: library.ammeter_read}
        for releases_gil, library in kinds.items()
    }
    for function in (call for functions in calls.values() for call in functions.values()):
        function.argtypes = (ctypes.c_int, ctypes.c_int64, *[ctypes.c_void_p] * 2, ctypes.c_char_p, ctypes.c_void_p)
    return min(compiled, _processor_level()), "", calls


def _processor_level() -> int:
    """Returns the vector level of this processor, as detected by torch."""
    try:
        name = torch.backends.cpu.get_cpu_capability()
    except AttributeError:  # before torch 2.1
        return 0
    return 2 if name.startswith("AVX512") else int(name == "AVX2")


LEVEL, MISSING, _CALLS = _load()
"""LEVEL: 0 for any processor's instructions, 1 AVX2, 2 AVX-512. MISSING: why there is no library, "" if there is
one."""
