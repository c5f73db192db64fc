"""Trains with every fault of the trainer, and healthy programs: does Ammeter find the one and leave the other alone?

    make zoo [ARGS="--quick | --only gradient-spike,adapters | --seeds 3 4 5 | --write"]

A fault is named if the verdict of its name is the first finding of `ammeter report`. It is located if that finding
names the module, tensor or line that the fault's registry declares broken. Exits with 1 if a limit is missed.
--write puts zoo.md and zoo.json into bench/results; `python -m bench.common.readme` then copies the figures into
the README.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny: threads that wait for each other cost more
from bench.common.paths import RESULTS
from bench.zoo import pool, report
from bench.zoo.plan import Plan
from bench.zoo.report import Results
from bench.zoo.runner import Result
from bench.zoo.scoring import limits, score_fault, score_healthy


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    seeds, only = tuple(dict.fromkeys(options.seeds)), options.only.split(",")
    plan = Plan(seeds[:1], onsets=1, only=only, frugal=False) if options.quick else Plan(seeds, only=only)
    results = measure(plan, options.workers, options.go_on)
    for line in report.terminal_lines(results):
        print(line)
    if options.write:
        words = ["FILE" if word == str(options.go_on) else word for word in arguments or sys.argv[1:]]
        report.write(results, options.write, f'make zoo ARGS="{" ".join(words)}"')
        print(f"written to {options.write}; for the README: python -m bench.common.readme")
    return 0 if all(limit.is_met for limit in results.limits) else 1


def measure(plan: Plan, workers: int = 2, results_file: Path | None = None) -> Results:
    """Runs all cases of a plan, except those with a result in `results_file`, and scores them."""
    cases = plan.cases()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - a fault lets everybody read its checkpoint, which a private folder would prevent
        results = pool.run_all(cases, Path(folder), workers, first=plan.seeds[0], results_file=results_file)
    by_case = {result.case: result for result in results}
    broken = [
        score_fault(result, by_case[result.case.twin])
        for result in results
        if result.case.fault and not result.case.frugal
    ]
    frugal = [score_fault(result, Result(result.case.twin, 0, [])) for result in results if result.case.frugal]
    sound = [score_healthy(result) for result in results if not result.case.fault]
    return Results(broken, sound, limits(broken, sound), sum(result.seconds for result in results), frugal, plan.seeds)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and one onset of each: a few minutes")
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="faults and programs with one of these words in them"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2), metavar="N", help="of the trainings (0 1 2)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="cases at a time (2)")
    parser.add_argument("--go-on", type=Path, metavar="FILE", help="keep each result there; an interrupted run goes on")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="keep the results")
    options = parser.parse_args(arguments)
    if options.write == RESULTS and (options.quick or options.only):
        parser.error("--quick and --only try too little to be kept in bench/results; name another folder")
    return options


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with it goes what it has started
    sys.exit(main())
