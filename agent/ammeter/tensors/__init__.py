"""Reads statistics of tensors: one pass, one interface, one file per device type."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NORM, ABSMAX, NANS, INFS, ZEROS, SUBNORMALS, SMALL, GRID = range(8)
"""Columns of a reading of n tensors, float64[n, 8].

NORM: the L2 norm to float64's precision; finite only if every element is, NaN if one is NaN. ABSMAX: the largest |x| of
the finite elements, 0 if there is none. NANS, INFS, ZEROS: number of elements; -0 is a zero. SUBNORMALS: elements with
0 < |x| < 2^-14, where float16 has less precision. SMALL: elements with 0 < |x| < 2^-3. GRID: those of them that are
multiples of 2^-24, the spacing of small float16.
"""

COLUMNS = 8


def available() -> dict[str, str]:
    """Returns how gradients are read here, per device type, and why if slowly.

    The keys are "cpu" and "cuda".
    """
    from ammeter.tensors import native  # needs torch, which some uses of this package do not

    instructions = ("every processor's instructions", "AVX2", "AVX-512")[native.LEVEL]
    slowly = "torch's operators, rarely, as the budget allows"
    return {
        "cpu": f"{slowly}: {native.MISSING}" if native.MISSING else f"compiled code, {instructions}",
        "cuda": f"Triton {_triton()}" if _triton() else f"{slowly}: Triton is not installed",
    }


def _triton() -> str:
    """Returns Triton's version, "" if it is not installed.

    Triton is not imported, because only programs with a GPU need it.
    """
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""
