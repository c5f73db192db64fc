"""Prints the doctor's lines: coloured on a terminal, plain in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ammeter.doctor.line import Line
from ammeter.wire import printable

STYLE = {"ok": "green", "note": "dim", "warn": "bold yellow", "fail": "bold red"}


def show(lines: Sequence[Line], console: Console | None = None) -> None:
    """Prints every line with its remedy, and a summary."""
    console = console or Console(highlight=False)
    if console.is_terminal:
        _print_table(lines, console)
    else:
        for line in lines:
            remedy = f" -> {line.remedy}" if line.remedy else ""
            print(printable.line(f"{line.level:4}  {line.about}: {line.text}{remedy}"))
    console.print(Text(_summary(lines)), soft_wrap=True)


def _print_table(lines: Sequence[Line], console: Console) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for line in lines:
        text = Text(printable.line(line.text))
        if line.remedy:
            text.append(f"\n{printable.line(line.remedy)}", "italic")
        table.add_row(Text(line.level, STYLE[line.level]), line.about, text)
    console.print(table)


def _summary(lines: Sequence[Line]) -> str:
    failures = [line.about for line in lines if line.level == "fail"]
    warnings = [line.about for line in lines if line.level == "warn"]
    if failures:
        return f"This set-up does not work: {', '.join(failures)}."
    if warnings:
        return f"This set-up works. It can be improved: {', '.join(warnings)}."
    return "This set-up works."
