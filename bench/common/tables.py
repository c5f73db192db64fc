"""Tables of results, for Markdown files and for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

Row = tuple[str, ...]


def markdown_table(rows: Sequence[Row]) -> list[str]:
    """The lines of a Markdown table whose first row is the heading."""
    heading, *rest = ["| " + " | ".join(row) + " |" for row in rows]
    return [heading, "|" + "---|" * len(rows[0]), *rest]


def terminal_table(rows: Sequence[Row], title: str | None = None) -> Table:
    """The same table for the terminal."""
    table = Table(*rows[0], title=title)
    for row in rows[1:]:
        table.add_row(*row)
    return table
