"""Measures the value of guards: runs with a fault, with and without the guard, and healthy runs.

    python -m bench.zoo.guards [--steps 120] [--seeds 1] [--quick] [--write]

Each line has four trainings with the same seed: with the fault, with the fault and the guard, healthy, and healthy with
the guard, which must not act there. A stopped run resumes from the checkpoint that the guard names. Then all guards at
once watch every healthy run of the zoo. --quick omits those runs and the cases with many seeds.
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
from bench.zoo.guards import healthy_runs
from bench.zoo.guards.healthy_runs import GuardedTwin
from bench.zoo.guards.training import Run, Training, converted, healthy_run, loss_when_resumed, losses, run

RESULT = RESULTS / "guards.md"
MAX_LOSS_INCREASE = 0.02
"""A run is rescued if its validation loss is at most this share above that of the healthy run."""


@dataclass(frozen=True)
class Case:
    """A fault and the guards against it.

    Attributes:
        guards: Names for --guard.
        fault: NAME@STEP.
        resumes: Compares the resumed runs: guarded from the guard's checkpoint, bare from the program's own.
        wide: The fault needs a wider range than float16 has; the healthy run is the same network in bfloat16.
        scatters: The loss varies by tens of percent between seeds, so many pairs of equal seeds are compared.
    """

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

SCATTER_SEEDS, SCATTER_STEPS, SCATTER_MEAN_STEPS = 48, 200, 100
"""For losses that scatter: the mean over the last 100 applied steps of 200, over 48 seeds. It is a training loss of 800
images instead of 128. A run is compared with the healthy run of its seed after as many applied steps: one step more
lowers the loss by one percent there, so the steps that the guard has to skip would count. Chosen with seeds 100 to 114,
where the error of a single pair was 6 %; 48 pairs have an error below 1 %."""


@dataclass(frozen=True)
class Line:
    """The losses of a case. left_alone: whether the guard left the healthy run unchanged to the last bit."""

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
        return self.guarded <= (1 + MAX_LOSS_INCREASE) * self.healthy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=120, help="of each run (120)")
    parser.add_argument("--seeds", type=int, default=1, help="runs of each kind (1)")
    parser.add_argument("--write", action="store_true", help="keep the table in bench/results/guards.md")
    parser.add_argument("--quick", action="store_true", help="without healthy runs of the zoo and many seeds: a minute")
    options = parser.parse_args()
    lines = list(measured(options.steps, options.seeds, quick=options.quick))
    twins = [] if options.quick else healthy_runs.compare_all(IDLE_SEEDS)
    text = "\n".join([*table(lines, options.steps, options.seeds), *healthy_runs_table(twins)])
    print(text)
    if options.write and not options.quick:
        RESULT.write_text(text)
    passed = all(line.rescued and line.left_alone for line in lines) and all(twin.left_alone for twin in twins)
    return 0 if passed else 1


def measured(steps: int, seeds: int, *, quick: bool) -> Iterator[Line]:
    for case in CASES:
        if case.scatters and quick:
            continue
        trainings = [Training(case.arch, steps, seed) for seed in range(seeds)]
        line = scattered(case) if case.scatters else mean_of([measure(case, training) for training in trainings])
        print(f"{'+'.join(case.guards)} {case.arch} {case.fault}: {'rescued' if line.rescued else 'lost'}", flush=True)
        yield line


def mean_of(lines: list[Line]) -> Line:
    """Mean losses of several seeds, with the guarded run of the first."""
    bare, guarded, healthy = (mean(getattr(line, name) for line in lines) for name in ("bare", "guarded", "healthy"))
    return Line(lines[0].case, bare, guarded, healthy, all(line.left_alone for line in lines), lines[0].run)


def measure(case: Case, training: Training) -> Line:
    """All runs of one case and seed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        healthy, healthy_guarded = healthy_run(training), healthy_run(training, case.guards)
        reference = run(training, folder / "wide", (), case.fault, "bf16") if case.wide else healthy
        bare = run(training, folder / "bare", fault=case.fault)
        guarded = run(training, folder / "guarded", case.guards, case.fault)
        ended = bare.loss, guarded.loss
        if case.resumes:
            own = loss_when_resumed(training, folder / "bare" / "own.pt")
            ended = own, loss_when_resumed(training, converted(training, guarded, folder))
    left_alone = not healthy_guarded.actions() and healthy_guarded.loss == healthy.loss
    return Line(case, *ended, reference.loss, left_alone, guarded)


def scattered(case: Case) -> Line:
    """One case over many seeds; actions, bare loss and healthy run are those of the first seed."""
    first = measure(case, Training(case.arch, SCATTER_STEPS, 0))
    pairs = [pair(case, Training(case.arch, SCATTER_STEPS, seed)) for seed in range(SCATTER_SEEDS)]
    guarded, healthy = (mean(values) for values in zip(*pairs, strict=True))
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
    return mean(guarded[-SCATTER_MEAN_STEPS:]), mean(healthy[: len(guarded)][-SCATTER_MEAN_STEPS:])


def table(lines: Sequence[Line], steps: int, seeds: int) -> list[str]:
    rows = [
        f"| {' and '.join(f'`{guard}`' for guard in line.case.guards)} | `{line.case.fault}` | {line.case.arch} |"
        f" {line.bare:.4f} | {line.guarded:.4f} | {line.healthy:.4f} | {_rescued(line)} |"
        f" {what(line)} | {'nothing' if line.left_alone else 'something'} |"
        for line in lines
    ]
    return [
        "# What guards are worth",
        "",
        f"Validation loss after {steps} steps of the reference trainer (`--tiny`, float16, on the CPU), in nats,"
        f" of seed 0{f' to {seeds - 1}, on average' if seeds > 1 else ''}."
        f" Rescued: at most {100 * MAX_LOSS_INCREASE:.0f} % above the healthy run. For a run that"
        f" was stopped, or that"
        " ends with NaN weights, the loss is that of the resumed run: bare from the program's own last checkpoint,"
        " guarded from the one that the guard names. For activation-overflow, a change of the network that exceeds"
        " float16's range, the healthy run is the same network in bfloat16. The loss of the"
        " convolutional network varies by tens of"
        " percent between seeds, so it is the mean training loss over the last"
        f" {SCATTER_MEAN_STEPS} applied steps of {SCATTER_STEPS} and over {SCATTER_SEEDS} seeds,"
        f" after as many applied"
        " steps as in the guarded run, with its standard error. Steps are the last closed ones. Written by"
        " `python -m bench.zoo.guards --write`.",
        "",
        "| guard | fault | network | bare | guarded | healthy | rescued | what it did | to the healthy run |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


def _rescued(line: Line) -> str:
    answer = "yes" if line.rescued else "no"
    return f"{answer}: {line.guarded / line.healthy - 1:+.1%} ± {line.error:.1%}" if line.error else answer


def healthy_runs_table(runs: Sequence[GuardedTwin]) -> list[str]:
    if not runs:
        return []
    alone = sum(run.left_alone for run in runs)
    return [
        "## What guards do to healthy runs",
        "",
        f"All guards at once (`Scale`, `Precision`, `Checkpoint` every {healthy_runs.CHECKPOINT_STEPS} steps, `Stop`,"
        f" `OnIncident`) in every healthy run of the zoo, beside the same run without guards: in {alone} of {len(runs)}"
        " all losses and the weights at the end are the same to the last bit, and no guard did anything but write its"
        " checkpoints.",
        "",
        *markdown_table(healthy_runs.table(runs)),
        "",
        *(f"- {run}" for run in runs if not run.left_alone),
        "",
    ]


def what(line: Line) -> str:
    """The guard's actions with their steps; repeated actions as the first step and their number."""
    found: dict[str, list[int]] = {}
    for event in line.run.events:
        found.setdefault(event["action"], []).append(event["step"])
    return "; ".join(
        f"{action} at {steps[0]}" + (f" and {len(steps) - 1} times more" if len(steps) > 1 else "")
        for action, steps in found.items()
    )


if __name__ == "__main__":
    sys.exit(main())
