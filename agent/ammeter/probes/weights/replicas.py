"""Reads in shared steps whether the ranks train one model: sums of the weights, and the bits of the gradients.

Replicas have equal weights and, after their reduction, equal gradients. Each rank records its own numbers, which the
verdicts compare; Ammeter itself communicates nothing between ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch

from ammeter.tensors import async_copy
from ammeter.tensors.slices import BLOCK_ELEMENTS, Buffer, readable

if TYPE_CHECKING:
    from ammeter.probes.weights.updates import Updates
    from ammeter.recording.context import ProbeContext
    from ammeter.recording.row import Row

MAX_SAMPLE_ELEMENTS = 2**14
"""Gradient elements per optimizer and device whose bits are examined on the host."""

SAMPLES_PER_MANTISSA = 8
"""Elements per mantissa of a format that are needed before a lack of other mantissas means something."""

MIN_OCTAVES = 10
"""Factors of two from the smallest to the largest element. The multiples of one number, as gradients that underflow in
float16 are, have as few mantissas as bfloat16 if they span eight of them."""

MIN_USED_SHARE = 0.8
"""Share of a format's mantissas that rounded numbers use. Sums of two similar numbers in bfloat16 have as few
mantissas, by chance, but others."""

FREE_BITS, MIN_FREE_SHARE = 6, 0.9
"""Last bits of a float32 that are zero in this share of the numbers, unless they have a common factor that is not a
power of two."""

OTHER_MANTISSAS = 2
"""Mantissas beyond those of a format: those of the limits of a clip by value."""

FULL_BITS = 24
ROUNDED_BITS = (8, 11)
"""Significant bits of float32, and of bfloat16 and float16."""

_COEFFICIENTS = torch.cos(torch.arange(float(BLOCK_ELEMENTS), dtype=torch.float64)) + 1 / 16
"""Of the checksum. They have both signs, so that weights around a mean do not outweigh a difference, and their sum is
not zero, so that a difference in all weights shows."""

_ODD_NUMBERS = np.random.default_rng(0).integers(0, 2**31, 2 * BLOCK_ELEMENTS) | 1
"""Of the fingerprint. The product of an odd number and a number that is not zero is not zero, modulo 2^32."""

_MIXER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: it spreads multiples over all bits (Knuth, The Art of Computer Programming 6.4)."""


class Replicas:
    """The readings of one session. They use buffers of `Updates`, which are free at that time."""

    def __init__(self, session: ProbeContext) -> None:
        self._session = session
        self._coefficients: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def attach(self) -> None:
        """Starts the shared steps in a process group. The ranks of a sharded model have parts of it."""
        distributed = torch.distributed
        is_one_of_several = distributed.is_available() and distributed.is_initialized()
        is_sharded = any(tensor.copies for tensor in self._session.watched.tensors)
        if is_one_of_several and not is_sharded and distributed.get_world_size() > 1:
            self._session.governor.shared_steps.begin()

    def read_weights(self, optimizer: torch.optim.Optimizer, updates: Updates) -> None:
        """Reads the checksum and the fingerprint of the weights before a step."""
        parameters = self._session.watched.parameters(optimizer)[0]
        for places, slices, buffer in updates.spare(optimizer):
            slices.copy([readable(parameters[at]) for at in places], buffer)
            coefficients, odd_numbers = self._coefficients_for(buffer)
            bits = (buffer.blocks.view(torch.int32) * odd_numbers).sum(1)
            self._later("fingerprint", async_copy.of(bits >> 8 & 0xFFFFFF))
            self._later("checksum", async_copy.of(buffer.blocks.mul_(coefficients).sum(1)))

    def read_gradients(self, optimizer: torch.optim.Optimizer, updates: Updates) -> None:
        """Reads a sample of the float32 gradients of a step, as its optimizer receives them."""
        parameters = self._session.watched.parameters(optimizer)[0]
        for places, slices, buffer in updates.spare(optimizer):
            gradients = [_float32_gradient(parameters[at]) for at in places]
            if any(gradient is not None for gradient in gradients):
                slices.copy(gradients, buffer)
                flat = buffer.blocks.view(-1)
                sample = flat[:: -(-flat.numel() // MAX_SAMPLE_ELEMENTS)]
                self._later("gradient_sample", async_copy.of(sample))

    def finish(self, row: Row) -> None:
        if checksums := row.arrived("checksum"):
            total = float(sum(sums.sum(dtype=np.float64) for sums in checksums))
            if np.isfinite(total):
                row.scalars["weights_checksum"] = total
                row.scalars["weights_fingerprint"] = fingerprint(row.arrived("fingerprint"))
        if samples := row.arrived("gradient_sample"):
            bits = significant_bits(np.concatenate(samples).astype(np.float32))
            if bits:
                row.scalars["grad_bits"] = bits

    def _later(self, key: str, transfer: async_copy.Transfer) -> None:
        self._session.row.later(key, transfer)

    def _coefficients_for(self, buffer: Buffer) -> tuple[torch.Tensor, torch.Tensor]:
        key = buffer.blocks.device, buffer.blocks.dtype
        known = self._coefficients.get(key)
        if known is None:
            words = BLOCK_ELEMENTS * buffer.blocks.element_size() // torch.int32.itemsize
            odd_numbers = torch.from_numpy(_ODD_NUMBERS[:words]).to(torch.int32)
            known = self._coefficients[key] = (
                _COEFFICIENTS.to(buffer.blocks.dtype).to(key[0], non_blocking=True),
                odd_numbers.to(key[0], non_blocking=True),
            )
        return known


def fingerprint(parts: Sequence[npt.NDArray[np.floating]]) -> float:
    """Returns a number from 0 to 2^24 - 1 that is equal for equal bits, and for others once in some 10 million times.

    Args:
        parts: sums of blocks, whole numbers below 2^24.
    """
    sums = np.concatenate(parts).astype(np.uint64)
    places = np.arange(1, 2 * len(sums), 2, dtype=np.uint64)
    return float((sums * places * _MIXER).sum(dtype=np.uint64) >> np.uint64(40))


def significant_bits(values: npt.NDArray[np.float32]) -> int:
    """Returns the significant bits of numbers: 8 as in bfloat16, 11 as in float16, else 24; 0 if unknown.

    A number that was rounded to a format has one of the few mantissas of the format, and a common factor, such as that
    of a clip, maps each mantissa to one other. So few different mantissas in many numbers show the rounding. Numbers
    with the largest magnitude are left out: a clip by value makes many of them equal.
    """
    sizes = np.abs(values)
    values = values[sizes < sizes.max()] if len(values) else values
    patterns = values.view(np.int32)
    exponents = patterns >> 23 & 0xFF
    usual = (exponents > 0) & (exponents < 0xFF)
    exponents, mantissas = exponents[usual], patterns[usual] & 0x7FFFFF
    if len(mantissas) < SAMPLES_PER_MANTISSA * 2 ** (ROUNDED_BITS[0] - 1) or np.ptp(exponents) < MIN_OCTAVES:
        return 0
    return next((bits for bits in ROUNDED_BITS if _are_rounded(mantissas, bits)), FULL_BITS)


def _are_rounded(mantissas: npt.NDArray[np.int32], bits: int) -> bool:
    """Whether there are as few mantissas as in a format with these significant bits, or just these without a factor."""
    different = 2 ** (bits - 1)
    limit = different + OTHER_MANTISSAS
    if len(mantissas) < SAMPLES_PER_MANTISSA * different or len(np.unique(mantissas[: 2 * limit])) > limit:
        return False
    if not MIN_USED_SHARE * different <= np.unique(mantissas).size <= limit:
        return False
    has_factor = np.mean(mantissas % 2**FREE_BITS == 0) < MIN_FREE_SHARE
    longer = mantissas[mantissas % 2 ** (FULL_BITS - bits) != 0]
    return bool(has_factor or np.unique(longer).size <= OTHER_MANTISSAS)


def _float32_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    gradient = parameter.grad
    return None if gradient is None or gradient.dtype is not torch.float32 else readable(gradient)
