"""Computes what a fleet of ranks needs from the measured costs of one collector, and simulates its batches.

    python -m bench.fleet [--ranks 10000 --columns 1200 --steps-per-second 1 ...] [--write]

Reads bench/results/collector.json. --write puts fleet.md into bench/results; `python -m bench.common.readme` then
copies its first table into docs/scaling.md.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from bench.common.paths import RESULTS
from bench.fleet import report
from bench.fleet.costs import MissingFigureError, read
from bench.fleet.scaling import Assumptions, Fleet
from bench.fleet.simulation import Scenario

COMMAND = "python -m bench.fleet"


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=raw)
    for part in (Fleet, Assumptions):
        group = parser.add_argument_group(part.__name__.lower(), inspect.getdoc(part))
        for field in fields(part):
            option, kind = "--" + field.name.replace("_", "-"), type(field.default)
            group.add_argument(option, type=kind, default=field.default, metavar="N", help=f"{field.default:g}")
    parser.add_argument("--results", type=Path, default=RESULTS / "collector.json", help="the measured costs")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write fleet.md")
    options = vars(parser.parse_args(given))
    numbers: dict[str, Any] = {name: value for name, value in options.items() if isinstance(value, int | float)}
    for name in (name for name, value in numbers.items() if value <= 0):
        parser.error(f"--{name.replace('_', '-')} is {numbers[name]}; use a number above 0")
    fleet = Fleet(**{field.name: numbers[field.name] for field in fields(Fleet)})
    limits = Assumptions(**{field.name: numbers[field.name] for field in fields(Assumptions)})
    try:
        text = report.markdown(fleet, limits, read(options["results"]), Scenario(), " ".join((COMMAND, *given)))
    except MissingFigureError as error:
        sys.exit(str(error))
    print(text, end="")
    if options["write"]:
        options["write"].mkdir(parents=True, exist_ok=True)
        (options["write"] / "fleet.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
