"""`ammeter probe MODULE:FACTORY`: trains a few steps at each size and dtype, and maps where precision holds."""

from __future__ import annotations

import argparse
import ast
import itertools
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ammeter.preflight.dtypes import dtype_list
from ammeter.preflight.precision_map import cell
from ammeter.preflight.precision_map.cell import Cell, Training
from ammeter.report.terminal.progress import Progress
from ammeter.wire import printable

EXIT_HOLDS, EXIT_BREAKS, EXIT_NOT_RUN = 0, 1, 2

MAX_DIFFERENCE = 0.1
"""Relative difference of the last loss from float32. In a few steps on one batch rounding makes a percent or two."""


def main(words: Sequence[str]) -> int:
    """Runs the command.

    Exit code: 0 if precision holds in every cell, 1 if not, 2 if the factory gives no model.
    """
    given = _arguments(words)
    training = Training(given.factory, given.steps, given.seed, given.lr, given.timeout, given.max_difference)
    with tempfile.TemporaryDirectory(prefix="ammeter-", ignore_cleanup_errors=True) as folder:
        cells = []
        for found in _cells(training, _points(given.vary), given.dtypes, given.dir or Path(folder)):
            if found.refused:
                print(f"ammeter probe: {printable.line(found.refused)}", file=sys.stderr)
                return EXIT_NOT_RUN
            cells.append(found)
    document = {
        "factory": training.factory,
        "steps": training.steps,
        "seed": training.seed,
        "dtypes": given.dtypes,
        "cells": [found.as_json() for found in cells],
        "holds": all(found.holds for found in cells),
    }
    if given.json:
        print(printable.json(document))
    else:
        from ammeter.preflight.precision_map import page

        page.show(document)
    return EXIT_HOLDS if document["holds"] else EXIT_BREAKS


def _cells(
    training: Training, points: Sequence[Mapping[str, Any]], dtypes: Sequence[str], folder: Path
) -> Iterator[Cell]:
    """Yields the cells of each point, float32 first, with which the others are compared."""
    ordered = ["float32", *(dtype for dtype in dtypes if dtype != "float32")]
    progress = Progress("probe", len(points) * len(ordered))
    for point in points:
        exact: Cell | None = None
        for dtype in ordered:
            progress.begin(" ".join([dtype, *(f"{name}={value}" for name, value in point.items())]))
            found = cell.run(training, point, dtype, folder)
            exact = exact or found
            if found is not exact:
                cell.compare(found, exact, training)
            progress.end()
            yield found
            if found.refused:
                return


def _points(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the varied arguments."""
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ammeter probe",
        description="Trains a model for a few steps at each size and in each dtype, each in a process of its own, and"
        " prints where precision holds.",
        epilog="FACTORY returns (module, inputs) or (module, inputs, loss). Exit code: 0 precision holds everywhere,"
        " 1 it does not, 2 the factory gives no model.",
    )
    parser.add_argument("factory", metavar="MODULE:FACTORY", help="such as train:make_model or src/train.py:make_model")
    parser.add_argument(
        "--dtypes", type=dtype_list, default="float16,bfloat16", help="compared with float32 (%(default)s)"
    )
    parser.add_argument("--batch-sizes", type=_values, metavar="N,N", help="the same as --vary batch_size=N,N")
    parser.add_argument("--sizes", type=_values, metavar="N,N", help="the same as --vary size=N,N")
    parser.add_argument(
        "--vary", action="append", default=[], type=_varied, metavar="NAME=V,V", help="values of a factory's argument"
    )
    parser.add_argument("--steps", type=_number(int, 2), default=8, help="watched steps of each cell (%(default)s)")
    parser.add_argument("--lr", type=_number(float, 0), default=1e-3, help="learning rate of AdamW (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of torch, the same in each cell (%(default)s)")
    parser.add_argument("--timeout", type=_number(float, 0), default=120.0, help="seconds for a cell (%(default)g)")
    parser.add_argument(
        "--max-difference", type=_number(float, 0), default=MAX_DIFFERENCE, help="of the last loss (%(default)g)"
    )
    parser.add_argument("--dir", type=Path, help="folder that keeps the journals, for ammeter report")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(words)
    named = [("batch_size", given.batch_sizes), ("size", given.sizes)]
    given.vary = {name: values for name, values in [*named, *given.vary] if values}
    return given


def _varied(text: str) -> tuple[str, list[Any]]:
    name, equals, values = text.partition("=")
    if not (equals and name.isidentifier() and values):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUES; use such as depth=2,4,8")
    return name, _values(values)


def _values(text: str) -> list[Any]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise argparse.ArgumentTypeError(f"{text!r} has an empty value; use such as 8,32,128")
    return list(dict.fromkeys(map(_value, parts)))


def _value(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return value if isinstance(value, int | float) else text


def _number(kind: Callable[[str], float], least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            number = kind(text)
        except ValueError:
            number = math.nan
        if not (number >= least and number > 0 and math.isfinite(number)):
            use = f"a whole number from {least:g} on" if kind is int else "a number above 0"
            raise argparse.ArgumentTypeError(f"{text!r} cannot be used; use {use}")
        return number

    return read
