"""Many float32 as JSON at once: each with nine digits, which tell it from every other float32, all equally long.

An encoder that takes one number after the other needs 50 ms for what 200 curves of 2,000 points hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import Floats
from ammeter.wire.frames import ABSENT_BITS

Words = npt.NDArray[np.uint32]

LOWEST, HIGHEST = -46, 39
"""Exponents of ten around all of float32."""


def _four(texts: Iterable[str]) -> Words:
    """Texts of four characters as numbers of four bytes."""
    return np.frombuffer("".join(texts).encode(), np.uint32)


HEADS = _four(f"{sign}{number // 10}.{number % 10}" for sign in " -" for number in range(100))
MIDDLES = _four(f"{number:04}" for number in range(10_000))
TAILS = _four(f"{number:03}e" for number in range(1_000))
EXPONENTS = _four(f"{exponent:+03}," for exponent in range(LOWEST, HIGHEST + 1))
"""The parts of `-1.23456789e-05,`. JSON allows the space that stands where there is no sign."""

STRANGE = {word: _four([f"{word:<15},"]) for word in ('"NaN"', '"Infinity"', '"-Infinity"', "null")}

SCALES = np.array([float(f"1e{8 - exponent}") for exponent in range(LOWEST, HIGHEST + 1)])
NEXT = np.array([float(f"1e{exponent + 1}") for exponent in range(LOWEST, HIGHEST + 1)])
"""What each exponent's digits are multiplied with, and where the exponent behind it begins."""

ESTIMATES = ((np.arange(2048) - 1023) * 1233 >> 12) - LOWEST
"""Exponent of ten behind LOWEST, or one too low, for each binary exponent: 1233 / 2^12 is log10(2). Zero has 0."""
ESTIMATES[0] = -LOWEST

VALUES_PER_SLICE = 2**15
"""Values that are worked on together: what lies between stays near the processor."""


def as_json(values: Floats) -> bytes:
    """A JSON array of float32[n]; "NaN", "Infinity" and "-Infinity" for what is no number, null for what is absent."""
    return b"[" + between_brackets([values])[0] + b"]"


def between_brackets(arrays: Sequence[Floats]) -> list[memoryview]:
    """The same of each array, without its brackets: many short ones cost what one long one does."""
    values = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    text = np.empty((len(values), 4), np.uint32)
    for begin in range(0, len(values), VALUES_PER_SLICE):
        _write(text[begin : begin + VALUES_PER_SLICE], values[begin : begin + VALUES_PER_SLICE])
    signs = text.view(np.uint8).reshape(-1).data
    ends = np.cumsum([0, *(16 * len(array) for array in arrays)]).tolist()
    return [signs[begin : max(begin, end - 1)] for begin, end in pairwise(ends)]


def _write(text: Words, values: Floats) -> None:
    """Four words for each value."""
    finite = np.isfinite(values)
    whole = bool(finite.all())
    digits, exponents = _decimal(np.abs(values if whole else np.where(finite, values, np.float32(0))))
    head = digits // np.uint32(10**7)  # divmod of numpy takes five times as long
    digits -= head * np.uint32(10**7)
    middle = digits // np.uint32(1000)
    digits -= middle * np.uint32(1000)
    text[:, 0] = HEADS[head + np.uint32(100) * np.signbit(values)]
    text[:, 1], text[:, 2], text[:, 3] = MIDDLES[middle], TAILS[digits], EXPONENTS[exponents]
    if not whole:
        text[np.isnan(values)] = STRANGE['"NaN"']
        text[values.view(np.uint32) == ABSENT_BITS] = STRANGE["null"]
        text[values == np.inf], text[values == -np.inf] = STRANGE['"Infinity"'], STRANGE['"-Infinity"']


def _decimal(sizes: Floats) -> tuple[Words, npt.NDArray[np.int64]]:
    """(nine digits, exponent of the first behind LOWEST) of numbers that are not negative."""
    numbers = sizes.astype(np.float64)
    exponents = ESTIMATES[numbers.view(np.int64) >> 52]
    exponents += numbers >= NEXT[exponents]
    numbers *= SCALES[exponents]
    digits = np.rint(numbers, out=numbers).astype(np.uint32)
    over = digits >= 10**9  # rounded up to the next power of ten
    if over.any():
        digits[over] //= np.uint32(10)
        exponents += over
    return digits, exponents
