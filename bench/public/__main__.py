"""Runs training programs of others, unmodified but for their size, bare and under `ammeter run`.

Commits of public repositories are fetched by git; the packages that the programs import are those of
bench/public/requirements.txt. What cannot be fetched or run is a line of the table that says why.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.common.paths import RESULTS, ROOT
from bench.public import report, runner
from bench.public.registry import PROGRAMS

SOURCES = ROOT / ".public"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exits with 1 if watching changed a program, or a report is wrong, or a healthy program has a finding."""
    options = _options(arguments)
    options.sources.mkdir(parents=True, exist_ok=True)
    chosen = [program for program in PROGRAMS if re.search(options.only, program.name)]
    load, outcomes = os.getloadavg()[0], []
    for program in chosen:
        for outcome in runner.run(program, options.sources):
            outcomes.append(outcome)
            print("  ".join(report.row(outcome)), flush=True)
            if options.write:
                report.write(outcomes, options.write, load)
    for name, figure in report.summary(outcomes)[1:]:
        print(f"{name}: {figure}")
    return int(not all(report.is_good(outcome) for outcome in outcomes))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="REGEX", help="programs whose name matches")
    parser.add_argument(
        "--sources", type=Path, default=SOURCES, metavar="FOLDER", help="clones by OWNER+NAME; missing ones are fetched"
    )
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="keep the results")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
