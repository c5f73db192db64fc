"""Order of the bytes in a block: by significance instead of by value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def shuffle(array: npt.NDArray[np.generic]) -> bytes:
    """Returns the first bytes of all values, then the second ones, and so on: similar bytes compress better."""
    size = array.dtype.itemsize
    return np.ascontiguousarray(array).view(np.uint8).reshape(-1, size).T.tobytes()


def unshuffle(data: bytes) -> npt.NDArray[np.int64]:
    """Unshuffles int64 values."""
    planes = np.frombuffer(data, np.uint8).reshape(8, -1)
    return np.ascontiguousarray(planes.T).reshape(-1).view("<i8")


def unshuffle_floats(data: bytes, width: int, places: Sequence[int] | None) -> npt.NDArray[np.float32]:
    """Unshuffles float32 values by arithmetic, which takes a quarter of the time of unshuffle().

    The difference matters because there are many floats.

    Args:
        width: number of columns.
        places: columns to unshuffle; None for all.
    """
    planes = np.frombuffer(data, np.uint8).reshape(4, width, -1)
    if places is not None:
        planes = planes[:, places]
    bits = planes[3].astype(np.uint32)
    for place in (2, 1, 0):
        np.left_shift(bits, 8, out=bits)
        np.bitwise_or(bits, planes[place], out=bits)
    floats: npt.NDArray[np.float32] = bits.view(np.float32)
    return floats
