"""Runs cases of public issue trackers under `ammeter run`, and checks what the report says of them.

    make cases [ARGS="--only REGEX | --workers N | --write"]

Each case is a thread in which people met a problem of mixed precision, rebuilt as a small program. The report is
compared with what the thread found, and the program with its remedy must not have that finding.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks are tiny: threads that wait for each other cost more
from bench.cases import report, runner
from bench.cases.case import Case
from bench.cases.registry import cases
from bench.cases.scoring import Score
from bench.common.options import make_command
from bench.common.paths import RESULTS


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    chosen = [case for case in cases() if options.only.search(f"{case.thread} {case.program}")]
    scored: list[tuple[Case, Score]] = []
    began = time.monotonic()
    for case, score in runner.run_all(chosen, options.workers):
        scored.append((case, score))
        print(
            f"{len(scored):>3}/{len(chosen)} {time.monotonic() - began:5.0f} s {report.line_of(case, score)}",
            flush=True,
        )
    for row in report.summary(scored):
        print(": ".join(row))
    if options.write:
        report.write(scored, options.write, make_command("cases", arguments))
        print(f"written to {options.write}")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), metavar="REGEX", help="threads or programs")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="programs at a time (%(default)s)")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="write the result files")
    options = parser.parse_args(arguments)
    if options.write == RESULTS and options.only.pattern:
        parser.error("--only runs too little for bench/results; name another folder")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with it goes what it has started
    sys.exit(main())
