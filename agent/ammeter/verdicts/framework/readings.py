"""What a verdict must read before it can be reached, and whether it applies to a run at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

NOUNS = {
    "applied": "applied step",
    "grad_norm": "gradient norm",
    "grad_absmax": "full gradient reading",
    "grad_agreement": "gradient comparison",
    "update_ratio": "update reading",
    "lost_updates": "update reading",
    "weights_nonfinite": "weight reading",
    "device_reserved_bytes": "device memory reading",
    "device_utilization": "device utilization reading",
    "kernels.census": "census reading",
}
"""Columns and events that a verdict may need, as singular nouns."""


class Readings(msgspec.Struct, frozen=True):
    """A need of a verdict.

    Attributes:
        column: A key of NOUNS.
        count: Readings without which the verdict cannot be reached.
        within: A run needs `count` readings in so many steps, and as many again in each further `within` steps. 0 if
            the run needs them only once, however long it takes.
    """

    column: str
    count: int
    within: int = 0

    def needed(self, steps: int) -> int:
        """Returns the number of readings that a run of this length needs."""
        return self.count * max(1, steps // self.within) if self.within else self.count


class RunFacts(msgspec.Struct, frozen=True):
    """What decides whether a verdict applies to a stream.

    Attributes:
        precision: The dtype of training under autocast; "float32" without autocast; None if unknown.
        half_tensors: Tensors in float16 or bfloat16.
        float16_tensors: Tensors in float16.
        has_scale: Whether the stream has a loss scale.
        has_device: Whether it has readings of device memory.
    """

    precision: str | None = None
    half_tensors: int = 0
    float16_tensors: int = 0
    has_scale: bool = False
    has_device: bool = False


def facts_of(readings: Mapping[str, Any], precision: str | None) -> RunFacts:
    """Returns the facts of a stream from its counted readings; see counters/readings.py."""
    return RunFacts(
        precision,
        half_tensors=readings.get("half_tensors", 0),
        float16_tensors=readings.get("float16_tensors", 0),
        has_scale=readings.get("scale", 0) > 0,
        has_device=readings.get("device_reserved_bytes", 0) > 0,
    )


def always(_: RunFacts) -> bool:
    return True


def in_float16(facts: RunFacts) -> bool:
    return facts.precision == "float16" or facts.float16_tensors > 0


def under_autocast(facts: RunFacts) -> bool:
    return facts.precision not in (None, "float32")
