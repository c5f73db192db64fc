"""The Triton kernels of cuda.py: one pass over many tensors, and its sums.

Imported only where a GPU is in use; Triton comes with the program's torch.
"""

import torch
import triton
import triton.language as tl

from ammeter.tensors import ABSMAX, COLUMNS, NORM
from ammeter.tensors.exponents import HIGHEST, LOWEST, NONFINITE, ZERO

BLOCK = tl.constexpr(4096)
"""Elements that a program processes at a time: 16 per thread."""

WARPS = 8

MAX_BLOCKS = 2**11
"""Maximum blocks in a chunk: the elements of a thread are counted in 16 bits."""

BINS = tl.constexpr(64)
"""Bins of the kernel's histogram: exponents.BINS, then padding; the last one counts lanes that are not elements."""

DTYPES = {torch.float32: tl.float32, torch.bfloat16: tl.int16, torch.float16: tl.float16}
"""The dtype as which a kernel loads the elements: a bfloat16 is the upper half of the float32 of the same value."""

SLOTS = 32
"""Chunks of one tensor that are added up at a time."""

INFINITE = tl.constexpr(0x7F800000)
NORMAL_HALF = tl.constexpr(0x38800000)
GRID_LIMIT = tl.constexpr(0x3E000000)
"""Bits of infinity, 2^-14 and 2^-3 as float32; non-negative numbers sort as their bits do."""

LARGE, SMALL = tl.constexpr(0x5D800000), tl.constexpr(0x2B800000)
"""Bits of 2^60 and 2^-40 as float32.

If the largest magnitude is between them, no square overflows float32, and those that vanish do not change the norm.
"""

_LOWEST, _HIGHEST, _ZERO, _NONFINITE = map(tl.constexpr, (LOWEST, HIGHEST, ZERO, NONFINITE))
_NORM, _ABSMAX, _COLUMNS = map(tl.constexpr, (NORM, ABSMAX, COLUMNS))


@triton.jit
def _magnitude(elements):
    """Returns the bits of |element| as float32."""
    if elements.dtype == tl.int16:
        return (elements.to(tl.int32) << 16) & 0x7FFFFFFF
    return elements.to(tl.float32).to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _added(bits, squares, top, few, fine, on_grid: tl.constexpr):
    """Returns the sums with one more block; each row of it stays in one thread.

    few and fine each contain two counts of 16 bits. on_grid: every element is a multiple of 2^-24, as in float16.
    """
    value = bits.to(tl.float32, bitcast=True)
    small = (bits < GRID_LIMIT).to(tl.int32)
    few += tl.sum((bits == 0).to(tl.int32) + ((bits < NORMAL_HALF).to(tl.int32) << 16), 1)
    if on_grid:
        fine += tl.sum(small, 1) * 0x10001
    else:
        rounded = ((value + 0.75) - 0.75).to(tl.int32, bitcast=True)  # the last place of such a sum is 2^-24
        fine += tl.sum(small + ((small & (rounded == bits).to(tl.int32)) << 16), 1)
    return squares + tl.sum(value * value, 1).to(tl.float64), tl.maximum(top, tl.max(bits, 1)), few, fine


@triton.jit
def _binned(bits, in_tensor):
    """Returns int32[BINS], the number of elements marked by `in_tensor` per exponent."""
    bins = tl.minimum(tl.maximum((bits >> 23) - 127, _LOWEST), _HIGHEST) - _LOWEST
    bins = tl.where(bits == 0, _ZERO, tl.where(bits >= INFINITE, _NONFINITE, bins))
    return tl.histogram(tl.reshape(tl.where(in_tensor, bins, BINS - 1), [BLOCK]), BINS)


@triton.jit(do_not_specialize=["from_chunk", "blocks"])
def read_chunks(
    places,
    counts,
    owners,
    firsts,
    partials,
    histogram,
    from_chunk,
    blocks,
    dtype: tl.constexpr,
    together: tl.constexpr,
    aligned: tl.constexpr,
    spectrum: tl.constexpr,
):
    """Each program reads `blocks` blocks of its chunk's tensor and writes one row of partials.

    together: number of elements in 16 bytes, which a thread loads at once if the tensors are aligned.
    """
    chunk = from_chunk + tl.program_id(0)
    owner = tl.load(owners + chunk)
    start = (chunk - tl.load(firsts + owner)).to(tl.int64) * blocks * BLOCK
    length = tl.minimum(tl.load(counts + owner) - start, blocks.to(tl.int64) * BLOCK).to(tl.int32)
    place = tl.load(places + owner).to(tl.pointer_type(dtype)) + start
    if aligned:
        place = tl.multiple_of(place, 16)
    rows: tl.constexpr = BLOCK // together
    lanes = tl.arange(0, rows)[:, None] * together + tl.arange(0, together)[None, :]
    squares = tl.zeros([rows], tl.float64)
    top = tl.zeros([rows], tl.int32)
    few = tl.zeros([rows], tl.int32)
    fine = tl.zeros([rows], tl.int32)
    bins = tl.zeros([BINS], tl.int32)
    on_grid: tl.constexpr = dtype == tl.float16
    full_blocks = length // BLOCK
    for block in range(full_blocks):
        bits = _magnitude(tl.load(place + block * BLOCK + lanes))
        squares, top, few, fine = _added(bits, squares, top, few, fine, on_grid)
        if spectrum:
            bins += _binned(bits, lanes >= 0)
    if full_blocks * BLOCK < length:
        in_tensor = full_blocks * BLOCK + lanes < length
        bits = _magnitude(tl.load(place + full_blocks * BLOCK + lanes, mask=in_tensor, other=0))
        squares, top, few, fine = _added(bits, squares, top, few, fine, on_grid)
        beyond = tl.sum(1 - in_tensor.to(tl.int32), 1) * 0x10001  # these lanes were counted as zeros
        few -= beyond
        fine -= beyond
        if spectrum:
            bins += _binned(bits, in_tensor)
    if spectrum:
        tl.atomic_add(histogram + tl.arange(0, BINS), bins.to(tl.int64))

    highest = tl.max(top)
    nans, infs = highest * 0, highest * 0
    if (highest >= LARGE) | ((highest < SMALL) & (highest > 0)):  # rare: reads again with what would slow every program
        squares = tl.zeros([rows], tl.float64)
        strange = tl.zeros([rows], tl.int32)
        top = tl.zeros([rows], tl.int32)
        for block in range(full_blocks + 1):
            in_tensor = block * BLOCK + lanes < length
            bits = _magnitude(tl.load(place + block * BLOCK + lanes, mask=in_tensor, other=0))
            wide = bits.to(tl.float32, bitcast=True).to(tl.float64)
            squares += tl.sum(wide * wide, 1)
            strange += tl.sum((bits > INFINITE).to(tl.int32) + ((bits == INFINITE).to(tl.int32) << 16), 1)
            top = tl.maximum(top, tl.max(tl.where(bits < INFINITE, bits, 0), 1))
        highest = tl.max(top)
        nans = tl.sum(strange & 0xFFFF)
        infs = tl.sum(strange >> 16)

    zeros = tl.sum(few & 0xFFFF)
    row = partials + chunk.to(tl.int64) * _COLUMNS
    tl.store(row, tl.sum(squares))
    tl.store(row + 1, highest.to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(row + 2, nans.to(tl.float64))
    tl.store(row + 3, infs.to(tl.float64))
    tl.store(row + 4, zeros.to(tl.float64))
    tl.store(row + 5, (tl.sum(few >> 16) - zeros).to(tl.float64))
    tl.store(row + 6, (tl.sum(fine & 0xFFFF) - zeros).to(tl.float64))
    tl.store(row + 7, (tl.sum(fine >> 16) - zeros).to(tl.float64))


@triton.jit
def add_chunks(partials, firsts, lasts, rows, slots: tl.constexpr):
    """Each program reduces the partials of one tensor: sums, and the maximum of ABSMAX."""
    tensor = tl.program_id(0)
    columns = tl.arange(0, _COLUMNS)
    lanes = tl.arange(0, slots)
    last = tl.load(lasts + tensor)
    sums = tl.zeros([slots, _COLUMNS], tl.float64)
    largest = tl.zeros([slots, _COLUMNS], tl.float64)
    for chunk in range(tl.load(firsts + tensor), last, slots):
        chunks = (chunk + lanes)[:, None]
        part = tl.load(partials + chunks.to(tl.int64) * _COLUMNS + columns[None, :], mask=chunks < last, other=0.0)
        sums += part
        largest = tl.maximum(largest, part)
    row = tl.where(columns == _ABSMAX, tl.max(largest, 0), tl.sum(sums, 0))
    row = tl.where(columns == _NORM, tl.sqrt(row), row)
    tl.store(rows + tensor * _COLUMNS + columns, row)
