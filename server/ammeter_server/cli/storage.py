"""`ammeter-server storage`: reports the space that tables, runs and days need in the database."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from ammeter_server.db import Store, partitions
from ammeter_server.db.queries import sizes

MAX_RUNS = 20
"""Number of runs shown, the largest first."""

EPOCH = date(1970, 1, 1)


def show(store: Store, arguments: argparse.Namespace) -> None:
    """Prints the report; with --json as one object."""
    report = measured(store)
    print(json.dumps(report) if arguments.json else "\n".join(_lines(report)))


def measured(store: Store) -> dict[str, Any]:
    """Measures the database.

    Returns:
        `database_bytes` on disk; bytes of stored data by `tables`, `days` and `runs`; `steps` of all ranks in blocks
            and in segments.
    """
    with store.reading() as connection:
        used, (waiting, compacted) = partitions.used_bytes(connection), sizes.waiting(connection)
        tables, by_day = sizes.by_table(connection), sizes.by_day(connection)
        runs = sizes.by_run(connection, MAX_RUNS)
    return {
        "database_bytes": used,
        "steps": {"in_blocks": waiting, "in_segments": compacted},
        "tables": [{"name": table.name, "rows": table.rows, "bytes": table.bytes} for table in tables],
        "days": [{"day": f"{EPOCH + timedelta(days=day)}", "bytes": size} for day, size in by_day],
        "runs": [{"run": run.name, "steps": run.rows, "bytes": run.bytes} for run in runs],
    }


def _lines(report: dict[str, Any]) -> list[str]:
    steps = report["steps"]
    lines = [f"{_size(report['database_bytes'])} on disk; {steps['in_segments']:,} steps of all ranks compacted, "]
    lines[0] += f"{steps['in_blocks']:,} not compacted yet"
    for title, key, count in (("table", "name", "rows"), ("run", "run", "steps"), ("day", "day", "")):
        rows = [
            (entry[key], f"{entry[count]:,}" if count else "", _size(entry["bytes"])) for entry in report[f"{title}s"]
        ]
        lines += ["", *_table((title, count, "bytes"), rows)]
    return lines


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
    left, *right = widths
    return [
        "  ".join([row[0].ljust(left), *(cell.rjust(width) for cell, width in zip(row[1:], right, strict=True))])
        for row in (head, *rows)
    ]


def _size(count: int) -> str:
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} {units[0]}" if units[0] == "B" else f"{size:.1f} {units[0]}"
