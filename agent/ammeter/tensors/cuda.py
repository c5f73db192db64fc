"""Reads gradients on a GPU with the kernels of triton.py, else with torch's operators.

The kernels read in one pass; both give the same counts, and norms within NORM_ERROR. Nothing here waits for the device;
results stay there until the caller transfers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import ABSMAX, COLUMNS, NORM, cpu
from ammeter.tensors.exponents import BINS
from ammeter.tensors.hidden_reads import unseen
from ammeter.tensors.layout import FreedMemory, in_one_piece, layout_check

KINDS = (torch.float32, torch.bfloat16, torch.float16)

MIN_BLOCKS = 16
"""Minimum blocks in a chunk: 256 KiB of float32.

With 8, the sums at the end of each chunk take a tenth of the time on an H200.
"""

NORM_ERROR = 1e-7
"""Maximum relative error of a norm: the kernels add up to eight squares in float32, all others in float64."""

MAX_CHUNKS = 2**17
"""Maximum rows of partial sums, 8 MiB; chunks grow with the tensors so that these suffice."""

CHUNK_ELEMENTS = 2**20
"""Elements that torch's operators read at a time: their temporaries take 20 MiB."""

ALIGNMENT_BYTES = 16
"""Bytes that a thread loads at once if every tensor starts at a multiple of them."""


class Device:
    """Reads one set of tensors on one device at every step.

    Each read checks that the layout is unchanged. No tensor is stored. Device memory is allocated when the layout or
    the stream changes, at most 32 MiB. Call it on the stream on which the tensors are ready. Not thread-safe. The first
    call compiles kernels that are not in Triton's cache, for about a second: make it at a point where the program may
    wait, with tensors that have the gradients' layout.
    """

    def __init__(self) -> None:
        self.slow = ""
        """Why torch's operators are used; "" if the kernels are."""
        self._plan: _Plan | None = None

    def read(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Returns float64[n, COLUMNS] on the device; valid until the next call.

        The tensors are real, floating-point and on one device. Those in several pieces or in float64 are read by
        rows().

        Raises:
            Gone: a tensor's memory was freed.
        """
        return self._read(tensors, spectrum=False)[0]

    def read_with_spectrum(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the result of read() and int64[exponents.BINS] of all elements the kernels read.

        The histogram is zero if the kernels read none.
        """
        return self._read(tensors, spectrum=True)

    def _read(self, tensors: Sequence[torch.Tensor], *, spectrum: bool) -> tuple[torch.Tensor, torch.Tensor]:
        if tensors and not self.slow:
            try:
                return self._by_kernels(tensors, spectrum)
            except FreedMemory:
                raise
            except Exception as error:  # noqa: BLE001 - Triton's own, the compiler's, the driver's, of any version
                self.slow = f"{type(error).__name__}: {error}"[:200]
        return unseen(lambda: (rows(tensors), _empty_spectrum(tensors)), tensors)

    def _by_kernels(self, tensors: Sequence[torch.Tensor], spectrum: bool) -> tuple[torch.Tensor, torch.Tensor]:
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), _current_device(tensors[0].device):
            plan = self._plan
            if plan is None or not plan.fits(tensors):
                with torch.inference_mode(False):
                    plan = _Plan(tensors)
                if self._plan is None:
                    plan.launch(tensors, spectrum=not spectrum)  # compiles the kernels that a later call would wait for
                self._plan = plan
            plan.launch(tensors, spectrum)
        others = {at: [tensors[at]] for at in plan.others}
        read = {at: unseen(lambda other=other: rows(other), other) for at, other in others.items()}  # type: ignore[misc]
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            for at, row in read.items():
                plan.rows[at] = row[0]
        return plan.rows, plan.spectrum


def rows(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Returns the result of Device.read with torch's operators: dozens of launches per tensor.

    The norm of float64 tensors is correct if their squares stay within float64.
    """
    if not tensors:
        return torch.zeros((0, COLUMNS), dtype=torch.float64)
    return torch.stack([_row(tensor.detach()) for tensor in tensors])


def _empty_spectrum(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.zeros(BINS, dtype=torch.int64, device=tensors[0].device if tensors else None)


def _row(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.numel():
        return torch.zeros(COLUMNS, dtype=torch.float64, device=tensor.device)
    chunk_rows = torch.stack([_chunk_row(chunk) for chunk in torch.split(tensor.reshape(-1), CHUNK_ELEMENTS)])
    row = chunk_rows.sum(0)
    row[NORM] = row[NORM].sqrt()
    row[ABSMAX] = chunk_rows[:, ABSMAX].amax()
    return row


def _chunk_row(chunk: torch.Tensor) -> torch.Tensor:
    """Returns a row with the sum of squares in place of the norm."""
    wide = torch.float64 if chunk.dtype is torch.float64 else torch.float32
    bit_patterns = cpu.BITS[wide]
    magnitude = chunk.to(wide).abs()
    bits = magnitude.view(bit_patterns.integer)
    nearest = (magnitude + bit_patterns.rounder) - bit_patterns.rounder
    zeros, small = (bits == 0).sum(), bits < bit_patterns.small
    statistics = (
        magnitude.double().square().sum(),
        magnitude.where(bits < bit_patterns.infinite, 0).amax(),
        (bits > bit_patterns.infinite).sum(),
        (bits == bit_patterns.infinite).sum(),
        zeros,
        (bits < bit_patterns.subnormal).sum() - zeros,
        small.sum() - zeros,
        (small & (nearest.view(bit_patterns.integer) == bits)).sum() - zeros,
    )
    return torch.stack([statistic.double() for statistic in statistics])


class _Plan:
    """The division of tensors into chunks, and the memory reused in each step.

    Chunks of a tensor are contiguous, and so are tensors of a dtype: each dtype is one launch.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._device = tensors[0].device
        self._stream = _stream(self._device)
        self._number = len(tensors)
        chosen = [
            at for at, tensor in enumerate(tensors) if tensor.device == self._device and in_one_piece(tensor, KINDS)
        ]
        self.others = sorted(set(range(len(tensors))) - set(chosen))
        self._chosen = chosen
        self._has_same_layout = layout_check([tensors[at] for at in chosen])
        counts = np.zeros(len(tensors), np.int64)
        counts[chosen] = [tensors[at].numel() for at in chosen]
        self._filled = [at for at in chosen if counts[at]]
        self._cut([tensors[at].dtype if at in set(chosen) else None for at in range(len(tensors))], counts)

    def _cut(self, dtypes: list[torch.dtype | None], counts: npt.NDArray[np.int64]) -> None:
        from ammeter.tensors import triton

        block = int(triton.BLOCK.value)
        self._blocks = blocks_in_chunk(int(counts.sum()), block, triton.MAX_BLOCKS)
        chunks = -(-counts // (self._blocks * block))
        order = [at for kind in KINDS for at, dtype in enumerate(dtypes) if dtype is kind]
        ends = np.cumsum(chunks[order])
        firsts, lasts = np.zeros((2, len(counts)), np.int32)
        firsts[order], lasts[order] = ends - chunks[order], ends
        self._launches = []
        for kind in KINDS:
            mine = [at for at in order if dtypes[at] is kind and chunks[at]]
            if mine:
                self._launches.append((kind, int(firsts[mine[0]]), int(chunks[mine].sum())))
        self._counts, self._firsts, self._lasts = (
            self._to_device(counts),
            self._to_device(firsts),
            self._to_device(lasts),
        )
        self._owners = self._to_device(np.repeat(np.array(order, np.int32), chunks[order]))
        self._partials = torch.empty((int(chunks.sum()), COLUMNS), dtype=torch.float64, device=self._device)
        self.rows = torch.zeros((len(counts), COLUMNS), dtype=torch.float64, device=self._device)
        self._histogram = torch.zeros(int(triton.BINS.value), dtype=torch.int64, device=self._device)
        self.spectrum = self._histogram[:BINS]
        self._places = torch.zeros(len(counts), dtype=torch.int64, device=self._device)
        self._pointers: list[int] = []

    def fits(self, tensors: Sequence[torch.Tensor]) -> bool:
        if len(tensors) != self._number or _stream(self._device) != self._stream:
            return False
        return self._has_same_layout(*(tensors[at] for at in self._chosen) if self.others else tensors)

    def launch(self, tensors: Sequence[torch.Tensor], spectrum: bool) -> None:
        """Queues the kernels; rows and histogram are valid when they have run."""
        from ammeter.tensors import triton

        self._point_at(tensors)
        if spectrum:
            self._histogram.zero_()
        tables = self._places, self._counts, self._owners, self._firsts, self._partials, self._histogram
        for kind, first, number in self._launches:
            triton.read_chunks[(number,)](
                *tables,
                first,
                self._blocks,
                triton.DTYPES[kind],
                ALIGNMENT_BYTES // kind.itemsize if self._aligned else 1,
                self._aligned,
                spectrum,
                num_warps=triton.WARPS,
                enable_fp_fusion=True,
            )
        triton.add_chunks[(self._number,)](self._partials, self._firsts, self._lasts, self.rows, triton.SLOTS)

    def _point_at(self, tensors: Sequence[torch.Tensor]) -> None:
        """Sends the addresses if they have changed; queued kernels still see the old ones."""
        if self.others:
            left_out = set(self.others)
            pointers = [0 if at in left_out else tensor.data_ptr() for at, tensor in enumerate(tensors)]
        else:
            pointers = list(map(torch.Tensor.data_ptr, tensors))
        if pointers == self._pointers:
            return
        if any(pointers[at] < 2**16 for at in self._filled):
            raise FreedMemory
        self._aligned = not any(pointer % ALIGNMENT_BYTES for pointer in pointers)
        self._places.copy_(self._pinned(np.array(pointers, np.int64)), non_blocking=True)
        self._pointers = pointers

    def _to_device(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        return self._pinned(numbers).to(self._device, non_blocking=True)

    def _pinned(self, numbers: npt.NDArray[Any]) -> torch.Tensor:
        """Returns the numbers in pinned memory.

        torch reuses pinned memory only after the copies from it have completed.
        """
        host = torch.from_numpy(numbers)
        return host.pin_memory() if self._device.type == "cuda" else host


def blocks_in_chunk(elements: int, block: int, max_blocks: int) -> int:
    """Returns the blocks per chunk, MIN_BLOCKS times a power of two.

    Powers of two keep the number of variants small. MAX_CHUNKS chunks contain all elements unless that takes more than
    `max_blocks` blocks per chunk.
    """
    blocks = MIN_BLOCKS
    while blocks * block * MAX_CHUNKS < elements and blocks < max_blocks:
        blocks *= 2
    return blocks


def _current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Returns a context that makes the device current, on which Triton launches."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
