"""What watching costs: bare and watched steps of one training in alternating blocks of one process.

    make bench [ARGS="--quick | --only ammeter,wandb | --write"]

Ammeter's presets, and what people use today for the same questions, at some 80 ms a step; the presets again at 2 ms.
The first row of every table is a peer that does nothing, measured exactly as often as Ammeter's default preset: how far
its ratios are from 1 is what the machine and the measurement add to all the others.
--write keeps agent.md and agent.json in bench/results; then `python -m bench.common.readme` brings the figures
into the README. The machine should do nothing else meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from bench.agent import report as tables
from bench.agent.comparison import WARM, Effort, Missing, Outcome, compare
from bench.agent.peers import OTHERS, PRESETS, Ammeter, Nothing, Peer
from bench.agent.report import Measured
from bench.agent.training import Kind
from bench.common.paths import RESULTS
from bench.common.trainer import Shape

LONG = (
    Kind("bf16", Shape(vocabulary=96, context=128, layers=4, heads=4, width=320)),
    Kind("fp16", Shape(vocabulary=96, context=80, layers=4, heads=4, width=64)),
)
"""Some 80 ms a step on two cores; few CPUs multiply float16 natively, so that model is smaller."""

SHORT = (
    Kind("bf16", Shape(vocabulary=96, context=16, layers=1, heads=2, width=64), batch=4, threads=1),
    Kind("fp16", Shape(vocabulary=96, context=16, layers=1, heads=2, width=40), batch=2, threads=1),
    Kind("fp32", Shape(vocabulary=96, context=48, layers=1, heads=2, width=64), batch=4, threads=1),
)
"""Some 2 ms a step on one core."""


@dataclass(frozen=True)
class Plan:
    """How much is measured. Pairs of blocks: of Ammeter's presets and each repeat, of each other peer, of short steps.

    others: the trainings that are measured with other peers as well.
    """

    long: Sequence[Kind] = LONG
    short: Sequence[Kind] = SHORT
    others: Sequence[Kind] = LONG
    repeats: int = 5
    pairs: int = 18
    other_pairs: int = 8
    short_pairs: int = 16
    steps: int = 5
    short_steps: int = 100
    periods: int = 2
    minutes: float = 15.0


QUICK = Plan(repeats=2, pairs=3, other_pairs=3, short_pairs=3, steps=2, short_steps=20, periods=0, minutes=4.0)


@dataclass(frozen=True)
class Phase:
    """Peers that are measured together, by an effort that has no end yet. milliseconds: of a step, about."""

    kind: Kind
    peers: Sequence[type[Peer]]
    effort: Effort
    milliseconds: float
    seed: int = 0
    short: bool = False

    @property
    def blocks(self) -> int:
        return len(self.peers) * (WARM + self.effort.pairs)

    @property
    def weight(self) -> float:
        steps = sum(self.effort.steps + self.effort.watched_steps(each) for each in self.peers)
        return (WARM + self.effort.pairs) * steps * self.milliseconds


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    for name in [each for each in os.environ if each.startswith("AMMETER_")]:
        del os.environ[name]
    warnings.filterwarnings("ignore", category=UserWarning, module="torch.autograd.graph")
    console = Console()
    plan = replace(QUICK if options.quick else Plan(), **({"repeats": options.repeats} if options.repeats else {}))
    measured = measure(plan, options.only.split(","), console)
    for table in tables.shown(measured):
        console.print(table)
    for line in tables.remarks(measured):
        console.print(line, highlight=False)
    if options.write:
        tables.write(measured, options.write, f'make bench ARGS="{" ".join(arguments or sys.argv[1:])}"')
        console.print(f"written to {options.write}; for the README: python -m bench.common.readme")
    return 0


def measure(plan: Plan, only: Sequence[str], console: Console) -> Measured:
    """Runs all phases of a plan whose peers have one of these words in their names."""
    phases = planned(plan, only)
    measured = Measured(load=os.getloadavg()[0], plan=f"{plan.steps} steps, {plan.short_steps} of short ones")
    end = time.monotonic() + 60 * plan.minutes
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=sum(each.blocks for each in phases))
        for at, phase in enumerate(phases):
            now = time.monotonic()
            share = phase.weight / sum(each.weight for each in phases[at:])
            names = ", ".join(each.name for each in phase.peers)
            progress.update(task, description=f"{phase.kind.precision}: {names}")
            effort = replace(phase.effort, until=now + share * (end - now))
            found: list[Outcome | Missing] = [Missing(each.name, "the time was up") for each in phase.peers]
            if now < end:
                found = _compare(phase, effort, lambda: progress.advance(task))
            if not console.is_terminal:
                console.print(f"{phase.kind.precision}: {names}: {time.monotonic() - now:.1f} s", highlight=False)
            measured.add(str(phase.kind), phase.kind.precision, found, short=phase.short)
    measured.seconds = time.monotonic() - end + 60 * plan.minutes
    return measured


def planned(plan: Plan, only: Sequence[str]) -> list[Phase]:
    """Ammeter first, while nobody else has threads in this process; then each other peer by itself.

    Where the default preset is measured, Nothing is too, in turn with it.
    """

    def wanted(peers: Sequence[type[Peer]]) -> list[type[Peer]]:
        found = [each for each in peers if any(word.strip().lower() in each.name.lower() for word in only)]
        return [Nothing, *found] if Ammeter in found and Nothing not in found else found

    presets, others, short = (
        Effort(pairs, steps, periods=plan.periods)
        for pairs, steps in (
            (plan.pairs, plan.steps),
            (plan.other_pairs, plan.steps),
            (plan.short_pairs, plan.short_steps),
        )
    )
    phases = []
    for kind in plan.long:
        phases += [Phase(kind, wanted((Nothing, Ammeter)), presets, 105, seed) for seed in range(plan.repeats)]
        phases.append(Phase(kind, wanted(PRESETS[1:]), presets, 105))
    phases += [Phase(kind, wanted((Nothing, *PRESETS)), short, 2.2, short=True) for kind in plan.short]
    phases += [Phase(kind, [peer], others, 140) for kind in plan.others for peer in wanted(OTHERS)]
    return [each for each in phases if each.peers]


def _compare(phase: Phase, effort: Effort, done: Callable[[], None]) -> list[Outcome | Missing]:
    return compare(phase.kind, phase.peers, effort, seed=phase.seed, done=done)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only to see that it works: numbers are not worth keeping")
    parser.add_argument("--only", default="", metavar="WORDS", help="peers with one of these words in their names")
    parser.add_argument("--repeats", type=int, help="independent repeats of Ammeter's default preset (5)")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="keep the results")
    options = parser.parse_args(arguments)
    if options.write == RESULTS and (options.quick or options.only):
        parser.error("--quick and --only measure too little to be kept in bench/results; name another folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
