"""Lists values that Ammeter cannot measure in any set-up."""

from __future__ import annotations

from collections.abc import Iterator

from ammeter.doctor.line import Line

LIMITS = (
    ("torch.compile", "inside a compiled model modules are not told apart: no census of kernels, no module of a NaN"),
    ("FSDP, DTensor", "gradients are read shard by shard on each rank, and no step is replayed"),
    ("CUDA graphs", "nothing is read while one is captured"),
    ("fused optimizers", "on CUDA a skipped step is known one step later"),
)


def lines() -> Iterator[Line]:
    for about, text in LIMITS:
        yield Line("note", about, text)
