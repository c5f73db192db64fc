"""The cost of casts, compared with that of the matrix products of the same forward pass."""

from __future__ import annotations

FLOPS_PER_BYTE = 139.0
"""FLOPs of the tensor cores per moved byte, by the data sheets: 139 on a V100 (125 TFLOP/s, 900 GB/s), 153 on an A100,
295 on an H100. The smallest value is used, so that the cost is not overestimated."""

MIN_TIME_SHARE = 0.1
"""Time of casts over the time of all matrix products. With a batch or a layer so large that the ratio is lower, the
casts do not matter."""


def time_share(moved_bytes: float, flops: int) -> float:
    """Returns the time to read and write so many bytes over that of so many FLOPs in low precision."""
    return moved_bytes * FLOPS_PER_BYTE / max(1, flops)


def written(number: int) -> str:
    """Returns '1.5 MiB'."""
    size, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.3g} {unit}"
