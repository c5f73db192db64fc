"""The rows of the result's one table, which the parts write while they run, and the document around it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.common.tables import markdown_table

ROWS = "AMMETER_BENCH_GPU_ROWS"
"""The environment variable with the file of the rows: a part that is killed keeps those that it has written."""

OK, MISSED, FAILED, LEFT_OUT = "ok", "missed", "FAILED", "left out"

HEADINGS = ("part", "what", "measured", "goal", "result")

MAX_WIDTH = 60
"""Characters to which a column is padded: a long reason does not widen every line of a log that may be cut."""

DRY = (
    "**DRY RUN without a GPU: a stand-in took CUDA's place, at tiny sizes. No number here says anything; the run only"
    " shows that each line of the command can be executed.**"
)


@dataclass(frozen=True)
class Row:
    """One measurement. goal: empty without one. result: one of the words above, or empty."""

    part: str
    what: str
    measured: str
    goal: str = ""
    result: str = ""

    @property
    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def emit(row: Row) -> None:
    with Path(os.environ[ROWS]).open("a") as file:
        file.write(row.line)


def read(file: Path) -> list[Row]:
    """The rows of a file; a line that was cut off is left out."""
    rows = []
    for line in file.read_text().splitlines(keepends=True) if file.exists() else []:
        if line.endswith("\n"):
            rows.append(Row(**json.loads(line)))
    return rows


def table(rows: Iterable[Row]) -> list[str]:
    cells = [(row.part, row.what, row.measured, row.goal, row.result) for row in rows]
    return markdown_table([HEADINGS, *(tuple(text.replace("|", "/") for text in row) for row in cells)])


def terminal(rows: Sequence[Row]) -> list[str]:
    """The same table in columns, for a log."""
    cells = [HEADINGS, *((row.part, row.what, row.measured, row.goal, row.result) for row in rows)]
    widths = [min(MAX_WIDTH, max(len(row[at]) for row in cells)) for at in range(len(HEADINGS))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def document(machine: str, rows: Sequence[Row], sections: Sequence[tuple[str, str]], *, state: str, dry: bool) -> str:
    """The result file. sections: title and output of each part. state: what of the run is missing, empty if nothing."""
    lines = ["# On a GPU", "", *([DRY, ""] if dry else []), f"{machine}. Written by `make gpu`.", ""]
    lines += [f"**{state}**", ""] if state else []
    lines += [*table(rows), ""]
    for title, output in sections:
        lines += [f"## {title}", "", output.strip() or "No output.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"
