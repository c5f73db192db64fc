"""Copies slices of many tensors into one buffer per device; the slices may take turns through all elements.

A few operators then compare all of them. The cost of a reading is bounded by the number of tensors, not by their size.
Buffers are allocated once and reused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.parameter import is_lazy

from ammeter.tensors.hidden_reads import has_numbers, unseen

MAX_TENSOR_ELEMENTS = 4096
"""Maximum number of elements read of one tensor."""

RUN_ELEMENTS = 16
"""Adjacent elements per run of a slice: reading one element costs a cache line, which contains its neighbours."""

BLOCK_ELEMENTS = 256
"""Elements that are summed on the device; a tensor's block sums are added on the host, in float64."""

GOLDEN_RATIO = (5**0.5 - 1) / 2
"""Multiples of it are spread over the remainders of 1 more evenly than those of any other number."""

UPDATES_BYTES = 24 * 2**20
COPIES_BYTES = 8 * 2**20
"""Memory of all buffers of a run: UPDATES_BYTES for changes of the weights by steps, COPIES_BYTES for copies of the
model."""

ELEMENT_BYTES = 5 * 4
"""Five float32 buffers; float64 tensors, which are rare, take twice as much."""

STATISTICS = ("norm", "norm_before", "update", "lost", "meant", "nonfinite", "product", "gradient", "earlier")
"""Rows of the result of compare(), per block: L2 norms, counts of elements, and a scalar product."""

Numbers = npt.NDArray[np.float64]


def elements_per_tensor(tensors: int, limit_bytes: int) -> int:
    """Returns the elements to read per tensor, at least BLOCK_ELEMENTS, within the memory limit."""
    max_elements = MAX_TENSOR_ELEMENTS
    while max_elements > BLOCK_ELEMENTS and tensors * max_elements * ELEMENT_BYTES > limit_bytes:
        max_elements //= 2
    return max_elements


def max_tensors(limit_bytes: int) -> int:
    """Returns the number of tensors that can be read within the limit in bytes."""
    return limit_bytes // (BLOCK_ELEMENTS * ELEMENT_BYTES)


def positions(numel: int, max_elements: int = MAX_TENSOR_ELEMENTS, turn: int = 0) -> npt.NDArray[np.int64]:
    """Returns the indices of the elements read of a flattened tensor.

    All of a small one, else runs of 16 spread over it: in turn 0 from its begin to its end, in later turns elsewhere,
    until every element had its turn.
    """
    if numel <= max_elements:
        return np.arange(numel)
    runs, gap, offset = _runs(numel, max_elements, turn)
    return (np.arange(runs)[:, None] * gap + np.arange(RUN_ELEMENTS)).reshape(-1) + offset


def turns(numel: int, max_elements: int = MAX_TENSOR_ELEMENTS) -> int:
    """Returns the number of turns, after the first one, in which every element of a tensor is read."""
    if numel <= max_elements:
        return 0
    runs = max_elements // RUN_ELEMENTS
    return -(-(numel - (runs - 1) * _odd(numel // runs)) // RUN_ELEMENTS)


def readable(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the tensor as real numbers of this rank, or None.

    Of a DTensor the local shard, complex numbers as pairs. None if there are no values to read: sparse, quantized,
    integer, empty, fake, or freed temporarily, as by FSDP.
    """
    if type(tensor) not in _PLAIN or tensor.dtype not in _USUAL:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if is_lazy(tensor) or not has_numbers(tensor) or tensor.layout is not torch.strided:
            return None
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor.detach().resolve_conj())
        if not tensor.is_floating_point():
            return None
    present = tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() and tensor.data_ptr()
    return tensor if present else None


class Buffer:
    """Memory for the slices of all tensors.

    Attributes:
        blocks: all slices, of shape [blocks, BLOCK_ELEMENTS]; zero behind the end of each slice.
        places: the part of `blocks` for each tensor.
    """

    def __init__(self, slices: Slices) -> None:
        unseen(lambda: self._allocate(slices), ())

    def _allocate(self, slices: Slices) -> None:
        flat = torch.zeros(slices.total, dtype=slices.dtype, device=slices.device)
        self.blocks = flat.view(-1, BLOCK_ELEMENTS)
        self.places = [
            flat.narrow(0, start, size).view(shape)
            for start, size, shape in zip(slices.starts, slices.sizes, slices.shapes, strict=True)
        ]


class Slices:
    """The positions of slices of tensors on one device.

    Slices can be read only into buffers made for the same Slices. float64 tensors are compared in float64, all others
    in float32, which represents every narrower number exactly.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], max_elements: int = MAX_TENSOR_ELEMENTS) -> None:
        """Takes results of readable(), of one device, either all float64 or none."""
        self.device = tensors[0].device
        self.dtype = torch.float64 if tensors[0].dtype is torch.float64 else torch.float32
        self.numels = [tensor.numel() for tensor in tensors]
        self.sizes = [min(numel, max_elements // RUN_ELEMENTS * RUN_ELEMENTS) for numel in self.numels]
        self.shapes = [_shape(numel, max_elements) for numel in self.numels]
        self._max_elements = max_elements
        self._at(0)
        blocks = np.array([-(-size // BLOCK_ELEMENTS) for size in self.sizes])
        self._first_blocks = np.concatenate([[0], np.cumsum(blocks)[:-1]])
        self.starts = [int(first) * BLOCK_ELEMENTS for first in self._first_blocks]
        self.total = int(blocks.sum()) * BLOCK_ELEMENTS

    def copy(self, tensors: Sequence[torch.Tensor | None], target: Buffer, turn: int = 0) -> None:
        """Copies the slices of these tensors into a buffer.

        If a tensor is None or has changed its size or device, its place becomes zero.

        Args:
            turn: selects the elements; those of one turn are always the same.
        """
        if turn != self._turn:
            self._at(turn)
        usable = [
            tensor is not None and tensor.numel() == numel and tensor.device == self.device
            for tensor, numel in zip(tensors, self.numels, strict=True)
        ]
        if not all(usable):
            target.blocks.zero_()
        at = [number for number, yes in enumerate(usable) if yes]
        places, slices = [target.places[n] for n in at], [self._slice(tensors[n], n) for n in at]
        if slices:
            torch._foreach_copy_(places, slices)

    def sums(self, table: npt.NDArray[np.floating]) -> Numbers:
        """Returns [rows, tensors], the sums of [rows, blocks] over the blocks of each tensor."""
        return np.add.reduceat(table, self._first_blocks, axis=1, dtype=np.float64)

    def _at(self, turn: int) -> None:
        """Turns to the slices of a turn: their strides, and the element at which each begins."""
        self._turn = turn
        cuts = [_cut(numel, self._max_elements, turn) for numel in self.numels]
        self._strides, self._offsets = [strides for strides, _ in cuts], [offset for _, offset in cuts]

    def _slice(self, tensor: torch.Tensor | None, number: int) -> torch.Tensor:
        assert tensor is not None
        if tensor.is_contiguous():
            begin = tensor.storage_offset() + self._offsets[number]
            return tensor.as_strided(self.shapes[number], self._strides[number], begin)
        chosen = torch.from_numpy(positions(self.numels[number], self._max_elements, self._turn)).to(
            tensor.device, non_blocking=True
        )
        return torch.take(tensor, chosen).view(self.shapes[number])


def compare(before: Buffer, after: Buffer, gradient: Buffer, earlier: Buffer, flags: Buffer) -> torch.Tensor:
    """Returns [len(STATISTICS), blocks]: a step's changes, and its gradient compared with an earlier one.

    lost: elements that are unchanged although their gradient is not zero; meant: all elements whose gradient is not
    zero. `before`, `after` and `flags` are overwritten: no other memory of their size is needed. Flags are
    floating-point numbers: on the CPU a comparison that writes booleans takes five times as long.
    """
    old, new, grads = before.blocks, after.blocks, gradient.blocks
    norm, norm_before = _norm(new), _norm(old)
    meant = torch.ne(grads, 0, out=flags.blocks)
    update = torch.sub(new, old, out=old)
    norm_update = _norm(update)
    lost = torch.eq(update, 0, out=old).mul_(meant)
    sums = [norm, norm_before, norm_update, lost.sum(1), meant.sum(1), nonfinite(after, flags)]
    product = torch.mul(grads, earlier.blocks, out=new).sum(1)
    return torch.stack([*sums, product, _norm(grads), _norm(earlier.blocks)])


def nonfinite(buffer: Buffer, flags: Buffer) -> torch.Tensor:
    """Returns [blocks], the number of NaN and infinite elements. Both buffers are overwritten."""
    numbers = torch.sub(buffer.blocks, buffer.blocks, out=buffer.blocks)  # zero, or NaN for NaN and Inf
    return torch.ne(numbers, numbers, out=flags.blocks).sum(1)


def squares(table: npt.NDArray[np.floating], norms: Sequence[int]) -> Numbers:
    """Returns the table in float64 with the norm rows squared.

    Squares can be added over blocks and tensors.
    """
    squared = table.astype(np.float64)
    squared[list(norms)] **= 2
    return squared


_PLAIN = (torch.Tensor, torch.nn.Parameter)
_USUAL = (torch.float32, torch.bfloat16, torch.float16)


def _norm(blocks: torch.Tensor) -> torch.Tensor:
    norms: torch.Tensor = torch.linalg.vector_norm(blocks, dim=1)
    return norms


def _runs(numel: int, max_elements: int, turn: int) -> tuple[int, int, int]:
    """Returns (number of runs, distance in elements from one run to the next, element of the first one).

    Later turns have a distance at which the runs of all turns together cover the tensor. Neighbouring turns are far
    from each other, so that a part of the tensor that is longer than a run is met sooner.
    """
    runs = max_elements // RUN_ELEMENTS
    if turn == 0:
        return runs, _odd((numel - RUN_ELEMENTS) // max(1, runs - 1)), 0
    gap, count = _odd(numel // runs), turns(numel, max_elements)
    begin = (turn - 1) * _far(count) % count * RUN_ELEMENTS
    return runs, gap, min(begin, numel - (runs - 1) * gap - RUN_ELEMENTS)


def _odd(gap: int) -> int:
    """The distance is odd if possible; otherwise all runs could fall in the same columns of a matrix."""
    return gap - 1 if gap % 2 == 0 and gap > RUN_ELEMENTS else gap


def _far(count: int) -> int:
    """Returns a number without a common factor with `count`, near the golden ratio of it."""
    far = max(1, round(GOLDEN_RATIO * count))
    while math.gcd(far, count) > 1:
        far += 1
    return far


def _shape(numel: int, max_elements: int) -> tuple[int, ...]:
    return (numel,) if numel <= max_elements else (max_elements // RUN_ELEMENTS, RUN_ELEMENTS)


def _cut(numel: int, max_elements: int, turn: int) -> tuple[tuple[int, ...], int]:
    """Returns the strides of a tensor's slice, and its first element."""
    if numel <= max_elements:
        return (1,), 0
    _, gap, offset = _runs(numel, max_elements, turn)
    return (gap, 1), offset
