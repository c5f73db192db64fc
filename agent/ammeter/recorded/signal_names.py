"""The name of each column of a stream outside of its journal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ammeter.wire.frames import SCALARS, STATS, Schema, is_loss

INDEX_COLUMNS = ("step", "time", "rank", "host", "stream")
"""The columns that name a row in a table."""


@dataclass(frozen=True)
class Signal:
    """One column of the journal.

    Attributes:
        name: Unique in the run: `loss`, or `grad.norm/fc.weight` for a statistic of one tensor.
        column: Its scalar, or its statistic.
        tensor: The tensor, for a statistic of one.
    """

    name: str
    column: str
    tensor: str | None = None

    @property
    def meaning(self) -> str:
        """What it is, as docs/events.md says it; empty for a name of the program."""
        own = "training loss of the batch at this line, unscaled" if is_loss(self.column) else ""
        return {**SCALARS, **STATS}.get(self.column, own)


@lru_cache(maxsize=64)
def signals_of(schema: Schema) -> tuple[Signal, ...]:
    """Returns the signal of each column of a schema, in order.

    A name that is taken, as by a second tensor of that name, gets a number: `grad.norm/weight#2`.
    """
    counts = dict.fromkeys(INDEX_COLUMNS, 1)
    scalars = [Signal(_unique(name, counts), name) for name in schema.scalars]
    return (
        *scalars,
        *(
            Signal(_unique(f"{stat}/{tensor.name}", counts), stat, tensor.name)
            for stat in schema.stats
            for tensor in schema.tensors
        ),
    )


def signal_logged(name: str) -> Signal:
    """Returns the signal of a value that run.log set late, as signals_of() names its column."""
    return Signal(_unique(name, dict.fromkeys(INDEX_COLUMNS, 1)), name)


def _unique(name: str, counts: dict[str, int]) -> str:
    counts[name] = counts.get(name, 0) + 1
    return name if counts[name] == 1 else f"{name}#{counts[name]}"
