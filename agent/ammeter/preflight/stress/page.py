"""Prints the operators of `ammeter stress` as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ammeter.wire import printable

PLAIN_WIDTH = 130
"""Columns of the table in a pipe or a file."""

LOST = 0.5
"""Relative error from which the number itself says nothing more."""

CHANGES = ("offset", "constant rows", "masked row", "longer")


def show(document: Mapping[str, Any], console: Console | None = None, *, every: bool = False) -> None:
    """Prints a row per operator and dtype, those that fail first, and a summary.

    Args:
        every: also rows that hold in float32, or in a dtype that the operator does not use.
    """
    console = console or Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    rows = sorted(document["rows"], key=_order)
    tried = [row for row in rows if not row["untried"]]
    shown = [row for row in tried if every or row["breaks"] or (row["used"] and row["dtype"] != "float32")]
    if shown:
        console.print(_table(shown))
    if any(row["changes"] for row in shown):
        console.print(_degenerate([row for row in shown if row["changes"]]))
    for text in (*_untried(rows), *document["notes"]):
        console.print(Text(printable.line(f"note: {text}")), soft_wrap=True)
    console.print(Text(_summary(document, tried)), soft_wrap=True)
    if len(shown) < len(tried):
        console.print(f"{len(tried) - len(shown)} rows that hold in float32 or are not used: --all", style="dim")


def _order(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
    return not row.get("fails"), not row.get("breaks"), row.get("headroom") or float("inf")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _grid("", "operator", "where", "dtype", "error", "largest", "too large", "too small")
    for row in rows:
        mark = Text("FAILS", "bold red") if row["fails"] else Text("holds", "green")
        if not row["used"]:
            mark = Text("unused", "dim")
        limits = (_limit(row["larger"]), _limit(row["smaller"], "-"))
        table.add_row(mark, *_named(row), _error(row["bad"], row["error"]), f"{row['absmax']:.2g}", *limits)
    return table


def _degenerate(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What degenerate operands do; it does not count as a failure."""
    table = _grid("error with", "", "", *CHANGES)
    for row in rows:
        found = (row["changes"].get(name) for name in CHANGES)
        table.add_row(*_named(row), *("" if one is None else _error(one["bad"], one["error"]) for one in found))
    return table


def _grid(*titles: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, title in enumerate(titles):
        table.add_column(title, overflow="fold", no_wrap=number > 2)
    return table


def _named(row: Mapping[str, Any]) -> tuple[Text, Text, Text]:
    where = "\n".join(printable.line(part) for part in (row["module"], row["line"]) if part)
    return Text(printable.line(row["operator"] + _times(row))), Text(where), Text(row["dtype"])


def _times(row: Mapping[str, Any]) -> str:
    return f" ({row['calls']}×)" if row["calls"] > 1 else ""


def _error(bad: str, error: float | None) -> str:
    if bad:
        return "Inf input" if bad == "operand" else bad
    if error is None:
        return "unknown"
    return f"{100 * error:.{1 if error < 0.1 else 2}g} %" if error < LOST else "over 50 %"


def _limit(limit: Mapping[str, Any] | None, sign: str = "") -> str:
    if limit is None:
        return "none"
    exponent = round(limit["factor"]).bit_length() - 1
    return f"{_error(limit['bad'], None)} ×2^{sign}{exponent}" if exponent else "as it is"


def _untried(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row["untried"]:
            reasons.setdefault(row["untried"], []).append(f"{row['operator']} at {row['line'] or row['module']}")
    return [f"not tried, {why}: {', '.join(dict.fromkeys(names))}" for why, names in reasons.items()]


def _summary(document: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> str:
    count, factor = document["failing"], document["factor"]
    if not tried:
        return "No sensitive operator was tried, so nothing is known of this model."
    spared = sum(row["breaks"] and not row["used"] for row in tried)
    aside = (
        f" {spared} unused rows would fail: on this {document['device']} they run in another dtype." if spared else ""
    )
    if not count:
        return f"All {len(tried)} rows hold, with room for operands {factor:g} times as large or small.{aside}"
    return (
        f"{count} of {len(tried)} rows fail from the model's own operands, or from ones up to {factor:g} times as large"
        f" or small.{aside}"
    )
