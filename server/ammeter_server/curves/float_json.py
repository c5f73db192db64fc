"""Encodes many float32 as JSON at once, each in the same length.

Nine digits distinguish every float32 from all others. An encoder of single numbers needs 50 ms for 200 curves of 2,000
points.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ammeter.wire.columns import Floats
from ammeter.wire.frames import ABSENT_BITS

Words = npt.NDArray[np.uint32]

MIN_EXPONENT, MAX_EXPONENT = -46, 39
"""Exponents of ten that cover all of float32."""


def _as_words(texts: Iterable[str]) -> Words:
    """Converts texts of four characters to numbers of four bytes."""
    return np.frombuffer("".join(texts).encode(), np.uint32)


HEADS = _as_words(f"{sign}{number // 10}.{number % 10}" for sign in " -" for number in range(100))
MIDDLES = _as_words(f"{number:04}" for number in range(10_000))
TAILS = _as_words(f"{number:03}e" for number in range(1_000))
EXPONENTS = _as_words(f"{exponent:+03}," for exponent in range(MIN_EXPONENT, MAX_EXPONENT + 1))
"""The parts of `-1.23456789e-05,`. JSON allows the space in place of a sign."""

NONFINITE_WORDS = {word: _as_words([f"{word:<15},"]) for word in ('"NaN"', '"Infinity"', '"-Infinity"', "null")}

DIGIT_FACTORS = np.array([float(f"1e{8 - exponent}") for exponent in range(MIN_EXPONENT, MAX_EXPONENT + 1)])
NEXT_POWERS = np.array([float(f"1e{exponent + 1}") for exponent in range(MIN_EXPONENT, MAX_EXPONENT + 1)])
"""For each exponent, the factor for its digits and the beginning of the next exponent."""

EXPONENT_ESTIMATES = ((np.arange(2048) - 1023) * 1233 >> 12) - MIN_EXPONENT
EXPONENT_ESTIMATES[0] = -MIN_EXPONENT
"""For each binary exponent, the exponent of ten relative to MIN_EXPONENT, or one less: 1233 / 2^12 is log10(2). Zero
has the exponent 0."""

VALUES_PER_SLICE = 2**15
"""Values processed together: intermediate results stay in the processor's cache."""


def as_json(values: Floats) -> bytes:
    """Encodes float32[n] as a JSON array.

    NaN and Inf become "NaN", "Infinity" and "-Infinity"; absent values become null.
    """
    return b"[" + between_brackets([values])[0] + b"]"


def between_brackets(arrays: Sequence[Floats]) -> list[memoryview]:
    """Encodes each array without its brackets.

    Many short arrays take as long as one long array.
    """
    values = np.concatenate(arrays) if arrays else np.zeros(0, np.float32)
    text = np.empty((len(values), 4), np.uint32)
    for begin in range(0, len(values), VALUES_PER_SLICE):
        _write(text[begin : begin + VALUES_PER_SLICE], values[begin : begin + VALUES_PER_SLICE])
    characters = text.view(np.uint8).reshape(-1).data
    ends = np.cumsum([0, *(16 * len(array) for array in arrays)]).tolist()
    return [characters[begin : max(begin, end - 1)] for begin, end in pairwise(ends)]


def _write(text: Words, values: Floats) -> None:
    """Writes four words for each value."""
    finite = np.isfinite(values)
    all_finite = bool(finite.all())
    digits, exponents = _decimal(np.abs(values if all_finite else np.where(finite, values, np.float32(0))))
    head = digits // np.uint32(10**7)  # numpy's divmod takes five times as long
    digits -= head * np.uint32(10**7)
    middle = digits // np.uint32(1000)
    digits -= middle * np.uint32(1000)
    text[:, 0] = HEADS[head + np.uint32(100) * np.signbit(values)]
    text[:, 1], text[:, 2], text[:, 3] = MIDDLES[middle], TAILS[digits], EXPONENTS[exponents]
    if not all_finite:
        text[np.isnan(values)] = NONFINITE_WORDS['"NaN"']
        text[values.view(np.uint32) == ABSENT_BITS] = NONFINITE_WORDS["null"]
        text[values == np.inf], text[values == -np.inf] = NONFINITE_WORDS['"Infinity"'], NONFINITE_WORDS['"-Infinity"']


def _decimal(sizes: Floats) -> tuple[Words, npt.NDArray[np.int64]]:
    """Returns (nine digits, exponent of the first digit relative to MIN_EXPONENT).

    The numbers must not be negative.
    """
    numbers = sizes.astype(np.float64)
    exponents = EXPONENT_ESTIMATES[numbers.view(np.int64) >> 52]
    exponents += numbers >= NEXT_POWERS[exponents]
    numbers *= DIGIT_FACTORS[exponents]
    digits = np.rint(numbers, out=numbers).astype(np.uint32)
    over = digits >= 10**9  # rounded up to the next power of ten
    if over.any():
        digits[over] //= np.uint32(10)
        exponents += over
    return digits, exponents
