"""The part that compares the pass over all gradients with a copy of their memory on the device."""

from __future__ import annotations

import torch

from ammeter.tensors.cuda import KINDS
from bench.agent.gpu.rows import FAILED, LEFT_OUT, MISSED, OK, Row, emit
from bench.common.tables import markdown_table
from bench.stats import cuda
from bench.stats.timing import HEADINGS, Timing, dtype_name, gradients

PART = "kernel"
GOAL = 0.9
"""Bytes per second of a reading, relative to the bytes that a copy on the device reads and writes."""

NUMBER, TOTAL_BYTES = 300, 2**30
DRY_NUMBER, DRY_BYTES = 3, 2**14


def run(dry: bool) -> int:
    try:
        import triton  # noqa: F401
    except ImportError as missing:
        emit(Row(PART, "the pass", f"Triton is missing: {missing}", "", LEFT_OUT))
        print("Triton is missing: torch's operators read the gradients, and there is no pass to measure.")
        return 0
    errors = cuda.check(elements=3_001 if dry else 3_000_001)
    emit(Row(PART, "counts and norms of random bits", errors[0] if errors else "those of torch", "", _of(not errors)))
    for error in errors:
        print(f"- wrong: {error}")
    print("\n".join(markdown_table([HEADINGS])), flush=True)
    number, size = (DRY_NUMBER, DRY_BYTES) if dry else (NUMBER, TOTAL_BYTES)
    for dtype in KINDS:
        tensors = gradients(number, size // dtype.itemsize // number, dtype, "cuda")
        timings = cuda.time_ways(tensors, f"{number}, {size / 2**30:.3g} GiB of {dtype_name(dtype)}")
        print(*markdown_table([HEADINGS, *(timing.row for timing in timings)])[2:], sep="\n", flush=True)
        copy, *readings = timings
        for timing in readings:
            emit(_row(timing, copy, dtype))
        del tensors
        torch.cuda.empty_cache()
    return 1 if errors else 0


def _row(timing: Timing, copy: Timing, dtype: torch.dtype) -> Row:
    """The plain pass has a goal; that with the spectrum, and torch's own norm, are shown for comparison."""
    share = timing.moved_bytes / timing.seconds / (copy.moved_bytes / copy.seconds)
    has_goal = timing.way == cuda.PLAIN
    return Row(
        PART,
        f"{timing.way}, {dtype_name(dtype)}",
        f"{100 * share:.0f} % of a copy's {copy.moved_bytes / copy.seconds / 1e9:,.0f} GB/s",
        f"{100 * GOAL:.0f} %" if has_goal else "",
        (OK if share >= GOAL else MISSED) if has_goal else "",
    )


def _of(passed: bool) -> str:
    return OK if passed else FAILED
