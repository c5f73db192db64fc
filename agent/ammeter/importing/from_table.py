"""Reads a history from a CSV file, or from a file with one JSON object per line."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ammeter.importing.history import History, ImportFailed

STEP_NAMES = ("step", "_step", "global_step", "train/global_step", "trainer/global_step", "iteration", "iter")
"""Columns that count the steps, the likeliest first: those of a W&B history, Lightning and transformers."""

TIME_NAMES = ("time", "_timestamp", "timestamp", "wall_time")
"""Columns with a time: seconds since 1970, or a date."""

NOT_METRICS = frozenset({"rank", "host", "stream", "_runtime", "Unnamed: 0", ""})
"""Other columns that describe a row, of `ammeter export`, W&B and pandas."""


def read_csv(target: str, run: str | None) -> History:
    """Returns the history of a file with a row per step."""
    with _file(target, run).open(encoding="utf-8-sig", newline="") as file:
        try:
            rows = csv.DictReader(file)
            _require_columns(target, rows.fieldnames or ())
            return _history(target, rows)
        except (UnicodeDecodeError, csv.Error) as error:
            raise ImportFailed(f"{target!r} is no CSV in UTF-8: {error}") from error


def read_jsonl(target: str, run: str | None) -> History:
    """Returns the history of a file with an object per step."""
    with _file(target, run).open(encoding="utf-8-sig") as file:
        try:
            return _history(target, _objects(target, file))
        except UnicodeDecodeError as error:
            raise ImportFailed(f"{target!r} is no text in UTF-8: {error}") from error


def _file(target: str, run: str | None) -> Path:
    if run is not None:
        raise ImportFailed("--run names a run of a folder or store; a file has one run only")
    if not Path(target).is_file():
        raise ImportFailed(f"{target!r} is not a file; name the one with the history")
    return Path(target)


def _require_columns(target: str, names: Sequence[str]) -> None:
    """Raises ImportFailed if columns cannot be told apart."""
    if len(names) == 1 and (found := next((sign for sign in (";", "\t") if sign in names[0]), None)):
        raise ImportFailed(f"{target!r} separates its columns by {found!r}; separate them by commas")
    if twice := next((name for name, count in Counter(names).items() if name and count > 1), None):
        raise ImportFailed(f"{target!r} has several columns named {twice!r}; rename all but one of them")


def _objects(target: str, lines: Iterator[str] | Any) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ImportFailed(f"line {number} of {target!r} is no JSON that can be read: {error}") from error
            if not isinstance(row, dict):
                raise ImportFailed(f"line {number} of {target!r} is no JSON object")
            yield row


def _history(target: str, rows: Any) -> History:
    path = Path(target).resolve()
    history, streams = History(str(path), name=path.stem), set[str]()
    for number, row in enumerate(rows):
        found = {name: value for name, text in row.items() if name and (value := _number(text)) is not None}
        step_name = next((name for name in STEP_NAMES if name in found), None)
        step = _step(row[step_name]) if step_name else number
        if step is None:
            raise ImportFailed(
                f"row {number} of {target!r} has the step {row[step_name]}; a step is a whole number up to {MAX_STEP}"
            )
        time = next((time for name in TIME_NAMES if (time := _time(row.get(name))) is not None), None)
        skip = {*STEP_NAMES, *TIME_NAMES, *NOT_METRICS}
        values = {name: value for name, value in found.items() if name not in skip}
        streams.add(str(row.get("stream")))
        if len(streams) > 1:
            raise ImportFailed(f"{target!r} has several ranks or attempts; keep the rows of one value of `stream`")
        if values:
            history.add(step, values, time)
    return history


MAX_STEP = 2**53
"""Larger numbers of JSON and CSV are not distinct in tools that read them as doubles."""


def _step(value: Any) -> int | None:
    """Returns a whole number; None for a fraction, NaN or a number that is too large."""
    number = float(value)
    return int(number) if number.is_integer() and number <= MAX_STEP else None


def _number(value: Any) -> float | None:
    """Returns a number; None for an empty cell and for text."""
    if isinstance(value, bool) or value is None or value == "":
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.(\d+))?(Z|[+-]\d\d:?\d\d)?")


def _time(value: Any) -> int | None:
    """Returns the nanoseconds of seconds since 1970 or of a date, which is UTC without an offset."""
    seconds = _number(value)
    if seconds is not None:
        return int(seconds * 1e9) if 0 < seconds < MAX_SECONDS else None
    date = _DATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if date is None:
        return None
    fraction, offset = date[1] or "", (date[2] or "Z").replace("Z", "+00:00")
    try:
        whole = datetime.fromisoformat(date[0][:19].replace(" ", "T") + offset).astimezone(UTC)
    except (ValueError, OverflowError):  # such as the 30th of February
        return None
    return int(whole.timestamp()) * 10**9 + int(fraction[:9].ljust(9, "0") or 0)


MAX_SECONDS = 2**33
"""Larger numbers are no seconds since 1970 (the year 2242), but a count or milliseconds."""
