"""Writes a run as one CSV file: a row per step and rank, a column per signal, an empty cell where nothing was read."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ammeter.export.new_target import new_file
from ammeter.export.written import Written
from ammeter.recorded.recorded_run import Section
from ammeter.recorded.signal_names import INDEX_COLUMNS


def write(written: Written) -> None:
    """Writes the file. A number is the shortest decimal that becomes the same float32 again."""
    with new_file(written.target, written.force) as draft:
        _write(draft, written)


def _write(draft: Path, written: Written) -> None:
    names = list(written.run.signals)
    with draft.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*INDEX_COLUMNS, *names])
        for stream in written.run.streams:
            for section in written.read(stream):
                writer.writerows(_rows(section, names))


def _rows(section: Section, names: list[str]) -> Iterator[tuple[object, ...]]:
    size, stream = len(section), section.stream
    times = np.datetime_as_string(section.times.view("datetime64[ns]"), unit="ns", timezone="UTC").tolist()
    rank, empty = "" if stream.rank is None else stream.rank, [""] * size
    constant = ([value] * size for value in (rank, stream.hello.host, stream.hello.stream))
    cells = (_cells(section, name) if name in section.columns else empty for name in names)
    return zip(section.steps.tolist(), times, *constant, *cells, strict=True)


def _cells(section: Section, name: str) -> list[str]:
    """Returns the text of each value: nan and inf where they were measured."""
    pairs = zip(section.columns[name], section.masks[name].tolist(), strict=True)
    return [str(value) if is_measured else "" for value, is_measured in pairs]
