"""Every fault of the trainer on every network, and healthy trainings: what Ammeter says of them, and what others do.

    make zoo [ARGS="--quick | --only gradient-spike,adapters | --seeds 3 4 5 | --write"]

A fault counts as named when `ammeter report` has the verdict of its name first, and as pointed at when that finding
names the module, tensor or line which the fault's registry says is broken. Ends with 1 where a limit is missed.
--write keeps zoo.md and zoo.json in bench/results; then `python -m bench.common.readme` brings the figures
into the README.
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
from bench.zoo import pool as zoo_pool
from bench.zoo import report as zoo_tables
from bench.zoo.plan import Plan
from bench.zoo.report import Measured
from bench.zoo.runner import Result
from bench.zoo.scoring import healthy, judged, limits


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    seeds, only = tuple(dict.fromkeys(options.seeds)), options.only.split(",")
    plan = Plan(seeds[:1], onsets=1, only=only, frugal=False) if options.quick else Plan(seeds, only=only)
    measured = measure(plan, options.workers, options.go_on)
    for line in zoo_tables.shown(measured):
        print(line)
    if options.write:
        words = ["FILE" if each == str(options.go_on) else each for each in arguments or sys.argv[1:]]
        zoo_tables.write(measured, options.write, f'make zoo ARGS="{" ".join(words)}"')
        print(f"written to {options.write}; for the README: python -m bench.common.readme")
    return 0 if all(each.met for each in measured.limits) else 1


def measure(plan: Plan, workers: int = 2, kept: Path | None = None) -> Measured:
    """Trains all cases of a plan, or takes from a file what came of them before, and judges them."""
    cases = plan.cases()
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        os.chmod(folder, 0o755)  # noqa: S103 - a fault lets everybody read its checkpoint, which a private folder would prevent
        results = zoo_pool.run_all(cases, Path(folder), workers, first=plan.seeds[0], kept=kept)
    by_case = {each.case: each for each in results}
    broken = [judged(each, by_case[each.case.twin]) for each in results if each.case.fault and not each.case.frugal]
    frugal = [judged(each, Result(each.case.twin, 0, [])) for each in results if each.case.frugal]
    sound = [healthy(each) for each in results if not each.case.fault]
    return Measured(broken, sound, limits(broken, sound), sum(each.seconds for each in results), frugal, plan.seeds)


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
