"""Lists values that Ammeter cannot measure in any set-up."""

from __future__ import annotations

from collections.abc import Iterator

from ammeter.doctor.line import Line

LIMITS = (
    ("torch.compile", "modules inside a compiled model are not distinguished: no kernel census, no module for a NaN"),
    ("FSDP, DTensor", "each rank reads the gradients of its own shards, and no step is replayed"),
    ("CUDA graphs", "nothing is read while a graph is captured"),
    ("fused optimizers", "on CUDA a skipped step is known one step later"),
)


def lines() -> Iterator[Line]:
    for about, text in LIMITS:
        yield Line("note", about, text)
