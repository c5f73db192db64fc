"""Prints the map of `ammeter probe`: a row per size, a column per dtype."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ammeter.wire import printable

PLAIN_WIDTH = 120
"""Columns of the table in a pipe or a file."""

MAX_REASON_CHARS = 60


def show(document: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the map, each finding once with its cells, and a summary."""
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(_table(document["cells"]))
    for text in _details(document["cells"]):
        console.print(Text(printable.line(text)), soft_wrap=False)
    console.print(Text(_summary(document)), soft_wrap=True)


def _table(cells: Sequence[Mapping[str, Any]]) -> Table:
    dtypes = list(dict.fromkeys(cell["dtype"] for cell in cells))
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for cell in cells:
        rows.setdefault(_point(cell), {})[cell["dtype"]] = cell
    table = Table(box=None, pad_edge=False, padding=(0, 3, 1, 0), header_style="dim")
    for title in ("", *dtypes):
        table.add_column(title, overflow="fold")
    for point, found in rows.items():
        table.add_row(Text(printable.line(point)), *(_cell(found[dtype]) for dtype in dtypes if dtype in found))
    return table


def _cell(cell: Mapping[str, Any]) -> Text:
    text = Text("holds", "green") if cell["holds"] else Text()
    for number, reason in enumerate(cell["reasons"]):
        text.append("\n" if number else "")
        text.append(printable.line(printable.shortened(reason, MAX_REASON_CHARS)), "bold red")
    for line in _numbers(cell):
        text.append(f"\n{line}", "dim")
    return text


def _numbers(cell: Mapping[str, Any]) -> list[str]:
    """The loss, step time, memory and underflow of a cell, where they are known."""
    lines = []
    if cell["losses"]:
        last, difference = cell["losses"][-1], cell["loss_difference"]
        shown = f"{last:.4g}" if isinstance(last, float) else last
        lines.append(f"loss {shown}" + (f" ({100 * difference:+.2g} %)" if difference is not None else ""))
    if cell["seconds"] is not None:
        ratio = f", {cell['time_ratio']:.2g}× float32" if cell["time_ratio"] else ""
        lines.append(f"{1000 * cell['seconds']:.3g} ms{ratio}, {cell['memory_bytes'] / 2**20:.0f} MiB")
    if cell["underflow_share"]:
        lines.append(f"underflow {100 * cell['underflow_share']:.2g} %")
    return lines


def _details(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each verdict once, with its title and the cells that have it; and errors in full."""
    found: dict[str, list[str]] = {}
    for cell in cells:
        name = f"{cell['dtype']} {_point(cell)}".strip()
        for finding in cell["findings"]:
            found.setdefault(f"{finding['verdict']}: {finding['title']}", []).append(name)
        for reason in cell["reasons"]:
            if len(reason) > MAX_REASON_CHARS:
                found.setdefault(reason, []).append(name)
    return [f"{text} [{'; '.join(names)}]" for text, names in found.items()]


def _point(cell: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in cell["given"].items())


def _summary(document: Mapping[str, Any]) -> str:
    cells, steps = document["cells"], document["steps"]
    breaking = sum(not cell["holds"] for cell in cells)
    if not breaking:
        return f"Precision holds in all {len(cells)} cells, for {steps} steps on one batch."
    return f"Precision does not hold in {breaking} of {len(cells)} cells, in {steps} steps on one batch."
