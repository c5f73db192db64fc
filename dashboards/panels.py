"""What a board says of its panels: a chart, a figure, a table, or the distribution of a histogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

HALF_WIDTH, FULL_WIDTH, SIXTH_WIDTH = 12, 24, 4
"""Widths in columns of Grafana's grid of 24."""
TALL_ROWS, LOW_ROWS = 8, 4

Queries = Sequence[tuple[str, str]]
"""(expression, legend)."""

Limits = Sequence[tuple[float | None, str]]
"""Colours, each with the value from which it applies; None for the lowest."""

Links = Sequence[tuple[str, str]]
"""(title, address)."""

BAD_FROM_ZERO: Limits = ((None, "green"), (1e-9, "red"))
WARN_FROM_ZERO: Limits = ((None, "green"), (1e-9, "orange"))
"""For numbers of which every one above zero is bad, or is to be looked at."""

COLOURS = {
    "applied": "green",
    "skipped": "orange",
    "running": "blue",
    "ended": "green",
    "diverged": "purple",
    "failed": "red",
    "lost": "orange",
    "float32": "blue",
    "float16": "orange",
    "bfloat16": "green",
}
"""Colours of lines whose legend is one of these words: the same on all boards."""


@dataclass(frozen=True)
class Chart:
    """A time series.

    log: base of a logarithmic axis. missing: text while there is no data. limits: drawn as dashed lines. change: a
    ratio that is no share of a whole, so that its axis has no end. soft_max: the axis ends there unless values are
    larger. links: of every line, beside those of its run.
    """

    title: str
    description: str
    unit: str
    queries: Queries
    log: int = 0
    bars: bool = False
    missing: str = ""
    width: int = HALF_WIDTH
    limits: Limits = ()
    change: bool = False
    soft_max: float = 0


@dataclass(frozen=True)
class Figure:
    """A number, or one per series, of now or of the displayed time range.

    words: text and colour in place of a number. change: as for a chart.
    """

    title: str
    description: str
    unit: str
    queries: Queries
    missing: str = ""
    width: int = SIXTH_WIDTH
    height: int = LOW_ROWS
    words: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    limits: Limits = ()
    change: bool = False


@dataclass(frozen=True)
class Listing:
    """A table with one row per series and its labels.

    value: title of the value column; empty for none. columns: labels in their order, the value last. links: by label.
    limits: colours of the value.
    """

    title: str
    description: str
    unit: str
    value: str
    queries: Queries
    columns: Sequence[str]
    missing: str = ""
    width: int = HALF_WIDTH
    height: int = TALL_ROWS
    limits: Limits = ()
    links: Mapping[str, Links] = field(default_factory=dict)


@dataclass(frozen=True)
class Distribution:
    """The buckets of a histogram over time, as a heatmap. The query returns one series per `le`."""

    title: str
    description: str
    unit: str
    queries: Queries
    missing: str = ""
    width: int = HALF_WIDTH


Shown = Chart | Figure | Listing | Distribution
