"""Measures the cost of watching: bare and watched steps of one training, in alternating blocks of one process.

    make bench [ARGS="--quick | --only ammeter,wandb | --against CHECKOUT | --write"]

Measures Ammeter's presets and the tools in use today for the same questions at about 80 ms a step, and the presets at
about 2 ms. The first row of every table is a peer that does nothing, measured exactly as often as Ammeter's default
preset: its distance from 1 is the error of the measurement.
--against compares this checkout's agent with that of another checkout, such as a git worktree of an older commit.
--write puts agent.md and agent.json into bench/results; `python -m bench.common.readme` then copies the figures into
the README. The machine should have no other load.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from bench.agent import against, report
from bench.agent.plan import QUICK, Plan
from bench.agent.runner import measure
from bench.common.machine import drop_settings
from bench.common.options import benchmark_parser, make_command, parse_benchmark


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    drop_settings()
    warnings.filterwarnings("ignore", category=UserWarning, module="torch.autograd.graph")
    console = Console()
    if options.against:
        return against.main(options.against, quick=options.quick, repeats=options.repeats, console=console)
    plan = replace(QUICK if options.quick else Plan(), **({"repeats": options.repeats} if options.repeats else {}))
    results = measure(plan, options.only.split(","), console)
    for table in report.terminal_tables(results):
        console.print(table)
    for line in report.remarks(results):
        console.print(line, highlight=False)
    if options.write:
        report.write(results, options.write, make_command("bench", arguments))
        console.print(f"written to {options.write}; for the README: python -m bench.common.readme")
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(
        __doc__,
        quick="only checks that everything runs, in about 90 s; the numbers are too noisy to keep",
        only="peers whose names contain one of these words",
    )
    parser.add_argument("--repeats", type=int, help="independent repeats of each peer (5)")
    parser.add_argument("--against", type=Path, metavar="CHECKOUT", help="compare with the agent of another checkout")
    options = parse_benchmark(parser, arguments)
    if options.against and (options.only or options.write):
        parser.error("--against prints its result; leave out --only and --write")
    return options


if __name__ == "__main__":
    sys.exit(main())
