"""Writes the tables in README.md and docs/scaling.md from the committed files in bench/results."""

from __future__ import annotations

import json
import sys
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from bench.common.paths import RESULTS, ROOT

README = ROOT / "README.md"
SCALING = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- figures -->\n", "<!-- /figures -->"


def main() -> int:
    write(README, figures())
    write(SCALING, table(path_of("fleet")))
    return 0


def write(document: Path, rows: str) -> None:
    """Replaces the block of figures in a document."""
    before, _, rest = document.read_text(encoding="utf-8").partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        sys.exit(f"{document.relative_to(ROOT)} has no block from {BEGIN.strip()} to {END}")
    document.write_text(f"{before}{BEGIN}{rows}{END}{after}", encoding="utf-8")


def figures() -> str:
    """The Markdown table of measured figures, each row with a link to the result file that holds it."""
    rows = [
        *found(),
        ("Injected faults whose cause is the first finding", cell("zoo", "ammeter", 2), "zoo"),
        ("Healthy runs with a false alarm", cell("zoo", "ammeter", 4), "zoo"),
        ("The same faults, found by a NaN check of the loss", cell("zoo", "NaN or Inf check", 1), "zoo"),
        ("Time of a watched step, unwatched = 1 (a GPT on the CPU)", times("ammeter"), "agent"),
        ('The same for `wandb.watch(log="all")` at each step', times('wandb.watch(log="all"), each step'), "agent"),
        ("Values stored per second of collector CPU", f"{_median('collector', 'ammeter', 2)} million", "collector"),
        ("Disk space per value", f"{cell('collector', 'ammeter', 4)} bytes", "collector"),
        ("Overflow to chat message, 95th percentile", f"{cell('paging', 'the collector tells', 3)} s", "paging"),
    ]
    lines = [f"| {what} | {value} | [{name}.md](bench/results/{name}.md) |" for what, value, name in rows]
    return "\n".join(["| figure | measured | result file |", "|---|---|---|", *lines, ""])


def found() -> list[tuple[str, str, str]]:
    """The shares of faults found in the reference trainer and in fresh generated programs, the lower one first."""
    rows = [("Injected faults that Ammeter finds", cell("zoo", "ammeter", 1), "zoo")]
    if (RESULTS / "wild.json").is_file():
        rows += generated(json.loads((RESULTS / "wild.json").read_text(encoding="utf-8")))
    return sorted(rows, key=lambda row: share(row[1]))


def generated(results: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The row of the wild zoo. Ends the program unless its spellings and styles were held out."""
    if not results["fresh"] or results["without"]:
        sys.exit("bench/results/wild.json is of programs known in development; run: make wild ARGS='--fresh --write'")
    count, of = results["figures"]["noticed"]
    value = f"{count} of {of} ({100 * count / of:.1f} %)" if of else "–"
    return [("Faults found in generated programs, of kinds held out from development", value, "wild")]


def share(value: str) -> float:
    """The share in a cell such as '402 of 402 (100.0 %)'; 0 where there is none."""
    count, _, of = value.partition(" (")[0].partition(" of ")
    return int(count) / int(of) if of else 0.0


def times(row: str) -> str:
    """The ratios of watched to unwatched steps in bf16 and fp16, without their spread."""
    bf16, fp16 = (_median("agent", row, column) for column in (5, 6))
    return f"{bf16} (bf16), {fp16} (fp16)"


def _median(result: str, row: str, column: int) -> str:
    """The first figure of a cell, without the spread in brackets."""
    return cell(result, row, column).split(" ")[0]


def cell(result: str, row: str, column: int) -> str:
    """One cell of a result file's first table, from the first row whose name begins with `row`."""
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in table(path_of(result)).splitlines()]
    found = next((cells for cells in rows if cells[0].startswith(row)), None)
    if found is None:
        sys.exit(f"{path_of(result).relative_to(ROOT)} has no row that begins with {row!r}")
    return found[column]


def path_of(result: str) -> Path:
    return RESULTS / f"{result}.md"


def table(result: Path) -> str:
    """The first table of a result file. Ends the program where there is none."""
    if not result.is_file():
        sys.exit(f"there is no {result.relative_to(ROOT)}; run: make bench ARGS=--write")
    lines = result.read_text(encoding="utf-8").splitlines()
    rows = takewhile(lambda line: line.startswith("|"), dropwhile(lambda line: not line.startswith("|"), lines))
    return "".join(f"{row}\n" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
