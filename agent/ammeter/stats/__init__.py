"""Numbers read out of tensors: one pass, one interface, one file per kind of device."""

NORM, ABSMAX, NANS, INFS, ZEROS, SUBNORMALS, SMALL, GRID = range(8)
"""Columns of what a reading of n tensors returns, float64[n, 8].

NORM: the L2 norm to float64's precision, finite only where every element is; NaN where one is NaN.
ABSMAX: the largest |x| of the finite elements, 0 without one.
NANS, INFS, ZEROS: elements; -0 is a zero. SUBNORMALS: elements with 0 < |x| < 2^-14, float16 has fewer bits for them.
SMALL: elements with 0 < |x| < 2^-3. GRID: those of them that are multiples of 2^-24, the spacing of small float16.
"""

COLUMNS = 8
