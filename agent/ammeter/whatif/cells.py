"""Counts elements by exponent, in cells that end where the formats' rounding ends.

If the ratio of two scales is a power of two, each limit of float16 and of the formats of 8 bits is the end of a cell,
so the counts say exactly how many elements are on which side of it. The limits of bfloat16 are inside a cell: they are
2^-7 and 2^-8 below 2^-126 and 2^128, which no scale in use comes near.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ammeter.whatif.formats import Edge

CELLS = (
    Edge(1.0, False),
    Edge(1.0, True),
    Edge(1.75, False),
    Edge(1.8125, True),
    Edge(1.875, False),
    Edge(2 - 2.0**-10, False),
    Edge(2 - 2.0**-11, False),
)
"""Lower ends of the cells of [1, 2); those of other powers of two are multiples. They are the limits of the formats: at
1 an element becomes zero, with a cell for the tie, which is frequent in gradients that were rounded before; at 1.75,
1.875 and 2 - 2^-10 it becomes subnormal in e5m2, e4m3fn and float16; at 1.8125, 1.875 and 2 - 2^-11 it overflows in
e4m3fn, e5m2 and float16."""

PER_EXPONENT = len(CELLS)

LOWEST, HIGHEST = -149, 127
"""Exponents of float32."""

_PARTS = 16
"""Parts of a power of two that four mantissa bits distinguish: CELLS end at multiples of 1/16."""

_PART_BITS = 19
"""Mantissa bits of float32 below these four."""

_FIRST_PARTS = [0, 12, 13, 14]
"""First part of each of the cells from the second to the fifth. The first one is a single number, and the last two
are in the last part."""

_NEAR_TWO = 0x7FE000
_NEARER_TWO = 0x7FF000
"""Mantissas of 2 - 2^-10 and 2 - 2^-11."""

Floats = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int64]
Bits = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]


class Counted(NamedTuple):
    """The elements of one tensor.

    Attributes:
        lowest: the exponent of the first counts.
        counts: PER_EXPONENT numbers for each exponent from `lowest` on; empty if there are no nonzero elements.
    """

    lowest: int
    counts: list[int]
    zeros: int
    nonfinite: int


def count(elements: Floats, sizes: Sequence[int]) -> Iterator[Counted]:
    """Yields the counts of each of several tensors, whose elements follow each other."""
    bits: Bits = elements.view(np.int32) & 0x7FFFFFFF
    parts = bits >> _PART_BITS
    at_begin = (bits & ((1 << _PART_BITS) - 1)) == 0
    near_two = (bits & _NEAR_TWO) == _NEAR_TWO
    begin = 0
    for size in sizes:
        own = slice(begin, begin + size)
        yield _counted(bits[own], parts[own], at_begin[own], near_two[own])
        begin += size


def _counted(bits: Bits, parts: Bits, at_begin: Flags, near_two: Flags) -> Counted:
    by_part = np.bincount(parts, minlength=256 * _PARTS)
    at_begin_by_part = np.bincount(parts[at_begin], minlength=256 * _PARTS)
    table = np.zeros((HIGHEST - LOWEST + 1, PER_EXPONENT), np.int64)
    table[-126 - LOWEST :] += _in_cells(by_part, at_begin_by_part, bits[near_two])[1:255]
    zeros = int(at_begin_by_part[0])
    if by_part[:_PARTS].sum() > zeros:
        table += _of_subnormals(bits[(bits > 0) & (bits < 1 << 23)])
    present = np.flatnonzero(table.any(axis=1))
    first, last = (int(present[0]), int(present[-1])) if present.size else (0, -1)
    counts: list[int] = table[first : last + 1].reshape(-1).tolist()
    return Counted(first + LOWEST if counts else 0, counts, zeros, int(by_part[255 * _PARTS :].sum()))


def _in_cells(by_part: Counts, at_begin: Counts, near_two: Bits) -> Counts:
    """Returns [exponents, PER_EXPONENT]: 1 itself has a cell, and 1.8125 belongs to the cell that ends with it."""
    ones, ties = at_begin[0::_PARTS], at_begin[13::_PARTS]
    cells = np.zeros((len(ones), PER_EXPONENT), np.int64)
    np.add.reduceat(by_part.reshape(-1, _PARTS), _FIRST_PARTS, axis=1, out=cells[:, 1:5])
    cells[:, 0] = ones
    cells[:, 1] -= ones
    cells[:, 2] += ties
    cells[:, 3] -= ties
    if near_two.size:
        nearer = (near_two & _NEARER_TWO) == _NEARER_TWO
        cells[:, 4] -= np.bincount(near_two >> 23, minlength=256)
        cells[:, 5] = np.bincount(near_two[~nearer] >> 23, minlength=256)
        cells[:, 6] = np.bincount(near_two[nearer] >> 23, minlength=256)
    return cells


def _of_subnormals(bits: Bits) -> Counts:
    """Counts subnormal float32 numbers, which are bits * 2^-149."""
    table = np.zeros((HIGHEST - LOWEST + 1, PER_EXPONENT), np.int64)
    (counted,) = count(bits.astype(np.float32), [len(bits)])
    rows = np.array(counted.counts).reshape(-1, PER_EXPONENT)
    table[counted.lowest : counted.lowest + len(rows)] = rows
    return table
