"""Numbers read out of tensors: one pass, one interface, one file per kind of device."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

NORM, ABSMAX, NANS, INFS, ZEROS, SUBNORMALS, SMALL, GRID = range(8)
"""Columns of what a reading of n tensors returns, float64[n, 8].

NORM: the L2 norm to float64's precision, finite only where every element is; NaN where one is NaN.
ABSMAX: the largest |x| of the finite elements, 0 without one.
NANS, INFS, ZEROS: elements; -0 is a zero. SUBNORMALS: elements with 0 < |x| < 2^-14, float16 has fewer bits for them.
SMALL: elements with 0 < |x| < 2^-3. GRID: those of them that are multiples of 2^-24, the spacing of small float16.
"""

COLUMNS = 8


def available() -> dict[str, str]:
    """How gradients are read here, for each kind of device: "cpu" and "cuda" -> by what, and if slowly, why."""
    from ammeter.tensors import native  # needs torch, which not everything here does

    instructions = ("every processor's instructions", "AVX2", "AVX-512")[native.LEVEL]
    slowly = "torch's operators, rarely, as the budget allows"
    return {
        "cpu": f"{slowly}: {native.MISSING}" if native.MISSING else f"compiled code, {instructions}",
        "cuda": f"Triton {_triton()}" if _triton() else f"{slowly}: Triton is not installed",
    }


def _triton() -> str:
    """Its version; "" when it is not installed. Not imported: that is for programs with a GPU."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return ""
