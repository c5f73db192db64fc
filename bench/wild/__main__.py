"""Generates programs that know nothing of Ammeter, breaks them, and checks what Ammeter says of them.

    make wild [ARGS="--develop | --fresh --seed 7 | --sample 60 | --healthy 300 | --seconds 600 | --ablate | --write"]
    python -m bench.wild --one clip-before-unscale/helper/every-7/class/mlp/sgd/fp16/run/20ms/3

A program combines a style, an architecture, an optimizer, a precision, a way of attaching, a time of a step, and a
fault with its spelling and time course. Each broken program has a repaired twin, and mutants of such twins are broken
programs, too. A recorder in a run without Ammeter shows from which step on their numbers differ, and a program without
a difference is discarded. `--one` makes one program of the table again, keeps its scripts and names its journal.
`--programs` runs programs of others bare and watched, and exits with 1 if one ends otherwise.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # networks are tiny: threads that wait for each other cost more
from bench.common.paths import RESULTS
from bench.wild import ablation, covering, programs, report, runner
from bench.wild.ablation import HOOKS
from bench.wild.recipe import EXAMPLE, Recipe
from bench.wild.report import Results
from bench.wild.runner import Case, Measure
from bench.wild.scoring import Score

HEALTHY_SEED = 10**6
"""Added to the seed for the further healthy programs, so that they are not those of the sample."""

SAMPLE_PROGRAMS = 200
"""Watched programs by default, half of them broken. Each costs three to six seconds of CPU time."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.one:
        return _one(options.one, options.kind, options.without)
    if options.programs:
        return _programs(options.programs, options.workers)
    results = _measured(_plan(options), options)
    for row in (*report.summary(results), *(report.ablation(results) if results.ablated else ())):
        print("  ".join(row))
    lines = report.misses(results), report.false_alarms(results), report.wrong_statements(results), report.lost(results)
    for line in chain.from_iterable(lines):
        print(line)
    if options.write:
        write = report.write_ablation if options.ablate and not options.fresh else report.write
        write(results, options.write, f'make wild ARGS="{" ".join(arguments or sys.argv[1:])}"')
        print(f"written to {options.write}")
    return 0


def _plan(options: argparse.Namespace) -> list[Case]:
    """The cases of the sample, and the further healthy ones.

    A fresh draw of healthy programs has all styles and spellings.
    """
    recipes = covering.chosen(options.seed, (options.sample + 1) // 2, lambda recipe: _is_wanted(recipe, options))
    healthy = covering.chosen(
        options.seed + HEALTHY_SEED, options.healthy, lambda recipe: options.fresh or _is_wanted(recipe, options)
    )
    return [*list(runner.cases(recipes))[: options.sample], *runner.healthy_cases(healthy)]


def _measured(plan: Sequence[Case], options: argparse.Namespace) -> Results:
    scores: list[Score] = []
    began, measure = time.monotonic(), Measure(options.without, options.ablate)
    with tempfile.TemporaryDirectory(prefix="wild-") as folder:
        for score in runner.run_all(plan, Path(folder), options.workers, options.seconds, measure):
            scores.append(score)
            done = sum(not score.without for score in scores)
            print(f"{done:>4}/{len(plan)} {time.monotonic() - began:6.1f} s  {report.line_of(score)}", flush=True)
    measured = [score for score in scores if not score.without]
    pairs = covering.share_of_pairs([score.recipe for score in measured])
    ablated = [score for score in scores if score.without]
    return Results(measured, options.seed, options.fresh, pairs, options.without, ablated)


def _is_wanted(recipe: Recipe, options: argparse.Namespace) -> bool:
    """--fresh draws what is held out, everything else draws the rest."""
    return recipe.held_out == options.fresh and (not options.only or recipe.fault in options.only.split(","))


def _one(recipe: Recipe, kind: str, without: str) -> int:
    """Runs one program again, and leaves its files."""
    folder = Path(tempfile.mkdtemp(prefix="wild-"))
    score = runner.run(Case(recipe, kind), folder, keep=True, without=without)
    print(report.line_of(score))
    script = folder / "watched" / "train.py"
    if script.exists():
        print(f"script, journal and recordings: {folder}\nammeter report {folder / 'watched' / 'journal'} --all")
    return 0


def _programs(folder: Path, workers: int) -> int:
    """Runs the programs of a folder. Exits with 1 if watching changes one."""
    outcomes = []
    for outcome in programs.run_all(folder, workers):
        outcomes.append(outcome)
        print("  ".join(programs.table([outcome])[-1]), flush=True)
    for line in (*programs.details(outcomes), programs.summary(outcomes)):
        print(line)
    return int(any(outcome.is_changed for outcome in outcomes))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    draws = parser.add_mutually_exclusive_group()
    draws.add_argument("--fresh", action="store_true", help="only programs with a held-out style or spelling")
    draws.add_argument("--develop", action="store_false", dest="fresh", help="only the others (the default)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of names, structure and combinations (0)")
    parser.add_argument("--sample", type=int, default=SAMPLE_PROGRAMS, metavar="N", help="watched programs (200)")
    parser.add_argument("--healthy", type=int, default=0, metavar="N", help="as many healthy programs more (0)")
    parser.add_argument("--seconds", type=float, metavar="LIMIT", help="begin no further program after this time")
    parser.add_argument("--only", default="", metavar="FAULTS", help="faults, separated by commas")
    parser.add_argument("--without", type=ablation.hooks, default="", metavar="HOOKS", help=f"off: {', '.join(HOOKS)}")
    parser.add_argument(
        "--ablate",
        action="store_true",
        help="watch what was found again without each hook it uses; --develop --ablate --write writes ablation.md",
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="programs at a time (2)")
    parser.add_argument("--programs", type=Path, metavar="FOLDER", help="run the healthy programs of others instead")
    parser.add_argument("--one", type=Recipe.parse, metavar="ID", help=f"one program, such as {EXAMPLE}")
    parser.add_argument("--kind", default="fault", help="of --one: fault, twin, alike, or mutant:NAME")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="keep the results")
    given = parser.parse_args(arguments)
    is_kept = (given.fresh or given.ablate) and not (given.only or given.without)
    if given.write == RESULTS and not is_kept:
        parser.error("bench/results has fresh draws or ablations of all faults; use --fresh, or name another folder")
    return given


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with it goes what it has started
    sys.exit(main())
