"""What guards are worth on real faults: the trainer breaks on purpose, bare and guarded, and runs as it should.

    python -m bench.zoo.guards [--steps 120] [--seeds 1] [--quick] [--write]

Each line is four trainings of the same seed: with the fault, with the fault and the guard, healthy, and healthy with
the guard, which must do nothing there. A run that was stopped goes on from the checkpoint that it was sent to. Then all
guards are tried at once in every healthy run of the zoo. --quick leaves that out, and the line of many seeds.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev

os.environ.setdefault("OMP_NUM_THREADS", "1")  # models are tiny: threads that wait for each other cost more
from bench.common.paths import RESULTS
from bench.common.tables import markdown_table
from bench.zoo.guards import healthy_runs as zoo_idle
from bench.zoo.guards.healthy_runs import Idle
from bench.zoo.guards.training import Run, Training, converted, go_on, healthy_run, losses, run

RESULT = RESULTS / "guards.md"
WITHIN = 0.02
"""A run counts as rescued when its validation loss is at most this share above that of the healthy run."""


@dataclass(frozen=True)
class Case:
    """guards: as --guard has them. fault: NAME@STEP. resumes: what is compared is the run that goes on from the
    checkpoint; bare it goes on from the program's own. wide: the fault changes the network, which is healthy in a
    precision with the range for it; it is compared with that. scatters: the network's loss differs by tens of percent
    from seed to seed, so many seeds are compared, each with itself."""

    guards: tuple[str, ...]
    fault: str
    arch: str = "gpt"
    resumes: bool = False
    wide: bool = False
    scatters: bool = False


CASES = (
    Case(("scale",), "overflow-storm"),
    Case(("scale",), "overflow-storm", "cnn", scatters=True),
    Case(("scale",), "scale-underflowed@40"),
    Case(("scale",), "scheduler-ahead@40"),
    Case(("precision",), "activation-overflow@20", wide=True),
    Case(("precision",), "activation-overflow@20", "cnn", wide=True, scatters=True),
    Case(("checkpoint",), "nonfinite-weights@40", resumes=True),
    Case(("stop", "checkpoint"), "nonfinite-weights@40", resumes=True),
    Case(("stop", "checkpoint"), "scale-underflowed@40", resumes=True),
)

IDLE_SEEDS = (0, 1, 2)

MANY_SEEDS, MANY_STEPS, LAST = 48, 200, 100
"""Where a loss scatters: the mean over the last 100 applied steps out of 200, over 48 seeds. It is a training loss, of
800 images instead of 128, and each run is held against the healthy one of its seed after as many applied steps: around
there a step more lowers the loss by one percent, so the few that the guard has to see skipped would count as many. Laid
down with seeds 100 to 114, where the error of a single pair was 6 %; so 48 pairs have one below 1 %."""


@dataclass(frozen=True)
class Line:
    """Losses; whether the guard did nothing to the healthy run, to the last bit; and what the guarded run was."""

    case: Case
    bare: float
    guarded: float
    healthy: float
    left_alone: bool
    run: Run
    error: float = 0.0
    """Standard error of guarded over healthy, where many seeds were compared."""

    @property
    def rescued(self) -> bool:
        return self.guarded <= (1 + WITHIN) * self.healthy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="of each run (120)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (1)")
    parser.add_argument("--write", action="store_true", help="keep the table in bench/results/guards.md")
    parser.add_argument("--quick", action="store_true", help="without healthy runs of the zoo and many seeds: a minute")
    options = parser.parse_args()
    lines = list(measured(options.steps, options.seeds, quick=options.quick))
    idle = [] if options.quick else zoo_idle.tried(IDLE_SEEDS)
    text = "\n".join([*table(lines, options.steps, options.seeds), *table_of_idle(idle)])
    print(text)
    if options.write and not options.quick:
        RESULT.write_text(text)
    well = all(line.rescued and line.left_alone for line in lines) and all(each.left_alone for each in idle)
    return 0 if well else 1


def measured(steps: int, seeds: int, *, quick: bool) -> Iterator[Line]:
    for case in CASES:
        if case.scatters and quick:
            continue
        trainings = [Training(case.arch, steps, seed) for seed in range(seeds)]
        line = scattered(case) if case.scatters else mean_of([measure(case, each) for each in trainings])
        print(f"{'+'.join(case.guards)} {case.arch} {case.fault}: {'rescued' if line.rescued else 'lost'}", flush=True)
        yield line


def mean_of(lines: list[Line]) -> Line:
    """Losses of several seeds; what the guard did is told of the first one."""
    bare, guarded, healthy = (mean(getattr(line, name) for line in lines) for name in ("bare", "guarded", "healthy"))
    return Line(lines[0].case, bare, guarded, healthy, all(each.left_alone for each in lines), lines[0].run)


def measure(case: Case, training: Training) -> Line:
    """All runs of one case and seed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        healthy, idle = healthy_run(training), healthy_run(training, case.guards)
        reference = run(training, folder / "wide", (), case.fault, "bf16") if case.wide else healthy
        bare = run(training, folder / "bare", fault=case.fault)
        guarded = run(training, folder / "guarded", case.guards, case.fault)
        ended = bare.loss, guarded.loss
        if case.resumes:
            own = go_on(training, folder / "bare" / "own.pt")
            ended = own, go_on(training, converted(training, guarded, folder))
    left_alone = not idle.actions() and idle.loss == healthy.loss
    return Line(case, *ended, reference.loss, left_alone, guarded)


def scattered(case: Case) -> Line:
    """The same over many seeds. Of the first one: what the guard did, the bare loss, and the healthy run."""
    first = measure(case, Training(case.arch, MANY_STEPS, 0))
    pairs = [pair(case, Training(case.arch, MANY_STEPS, seed)) for seed in range(MANY_SEEDS)]
    guarded, healthy = (mean(each) for each in zip(*pairs, strict=True))
    ratios = [ours / theirs for ours, theirs in pairs]
    error = stdev(ratios) / len(ratios) ** 0.5
    return replace(first, guarded=guarded, healthy=healthy, error=error)


def pair(case: Case, training: Training) -> tuple[float, float]:
    """Mean loss over the last steps that the guarded run applied, and over the same ones of the healthy run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(training, folder / "guarded", case.guards, case.fault)
        run(training, folder / "healthy", (), *((case.fault, "bf16") if case.wide else ()))
        guarded, healthy = losses(folder / "guarded"), losses(folder / "healthy")
    return mean(guarded[-LAST:]), mean(healthy[: len(guarded)][-LAST:])


def table(lines: Sequence[Line], steps: int, seeds: int) -> list[str]:
    rows = [
        f"| {' and '.join(f'`{each}`' for each in line.case.guards)} | `{line.case.fault}` | {line.case.arch} |"
        f" {line.bare:.4f} | {line.guarded:.4f} | {line.healthy:.4f} | {_rescued(line)} |"
        f" {what(line)} | {'nothing' if line.left_alone else 'something'} |"
        for line in lines
    ]
    return [
        "# What guards are worth",
        "",
        f"Validation loss after {steps} steps of the reference trainer (`--tiny`, float16, on the CPU), in nats,"
        f" of seed 0{f' to {seeds - 1}, on average' if seeds > 1 else ''}."
        f" Rescued: at most {100 * WITHIN:.0f} % above the healthy run. Of a run that was stopped, or that ends"
        " poisoned, the loss is that of the run that goes on: bare from the program's own last checkpoint, guarded"
        " from the one the guard names. Of activation-overflow, a change to the network that float16 cannot hold,"
        " the healthy run is that of the same network in bfloat16. The loss of the convolutional one differs by tens of"
        f" percent from seed to seed, so it is the mean of the training loss over the last {LAST} applied steps of"
        f" {MANY_STEPS} and over {MANY_SEEDS} seeds, each after as many applied steps as the guarded run of its"
        " seed, and the standard error stands beside it. Steps are those that had closed last. Written by"
        " `python -m bench.zoo.guards --write`.",
        "",
        "| guard | fault | network | bare | guarded | healthy | rescued | what it did | to the healthy run |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _rescued(line: Line) -> str:
    told = "yes" if line.rescued else "no"
    return f"{told}: {line.guarded / line.healthy - 1:+.1%} ± {line.error:.1%}" if line.error else told


def table_of_idle(runs: Sequence[Idle]) -> list[str]:
    if not runs:
        return []
    alone = sum(each.left_alone for each in runs)
    return [
        "## What guards do to healthy runs",
        "",
        f"All guards at once (`Scale`, `Precision`, `Checkpoint` every {zoo_idle.CHECKPOINT_STEPS} steps, `Stop`,"
        f" `OnIncident`) in every healthy run of the zoo, beside the same run without guards: in {alone} of {len(runs)}"
        " all losses and the weights at the end are the same to the last bit, and no guard did anything but write its"
        " checkpoints.",
        "",
        *markdown_table(zoo_idle.table(runs)),
        "",
        *(f"- {each}" for each in runs if not each.left_alone),
        "",
    ]


def what(line: Line) -> str:
    """Its actions with their steps; of many alike the first and their number."""
    found: dict[str, list[int]] = {}
    for each in line.run.told:
        found.setdefault(each["action"], []).append(each["step"])
    return "; ".join(
        f"{action} at {steps[0]}" + (f" and {len(steps) - 1} times more" if len(steps) > 1 else "")
        for action, steps in found.items()
    )


if __name__ == "__main__":
    sys.exit(main())
