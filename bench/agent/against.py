"""Compares the agents of two checkouts, in processes that train in turn.

Each repeat starts four processes: one unwatched, one watched by this checkout's agent, and two watched by the other's.
Only one of them trains at a time, a block of steps each, in an order that rotates and reverses. The processes use
public functions of the agent only, so that older checkouts can be compared.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.agent.comparison import WARMUP_PAIRS, Outcome
from bench.agent.peers import Coverage
from bench.common.checkouts import (
    AFTER,
    BEFORE,
    CONTROL,
    HEADINGS,
    Checkout,
    CheckoutError,
    Figure,
    conclusion,
)
from bench.common.paths import ROOT
from bench.common.tables import terminal_table

BARE = "bare"
WORKER = "bench.agent.against_worker"


@dataclass(frozen=True)
class Effort:
    """Amount of work: for each training (a name of against_worker.SPECS) the steps in a block."""

    steps: Mapping[str, int]
    rounds: int
    repeats: int


FULL = Effort({"long": 5, "short": 100}, rounds=12, repeats=5)
QUICK = Effort({"short": 20}, rounds=3, repeats=2)


def main(other: Path, *, quick: bool, repeats: int | None, console: Console) -> int:
    """Prints the comparison. Returns 1 if this checkout is slower, 2 if the other one cannot be measured."""
    effort = QUICK if quick else FULL
    try:
        checkouts = {BEFORE: Checkout.at(other), AFTER: Checkout.at(ROOT)}
        figures = measure(checkouts, effort, repeats or effort.repeats)
    except CheckoutError as error:
        console.print(str(error), highlight=False)
        return 2
    for side, checkout in checkouts.items():
        console.print(f"{side}: {checkout}", highlight=False)
    console.print(terminal_table([HEADINGS, *(figure.row for figure in figures)]))
    console.print(conclusion(figures), highlight=False)
    return 1 if any(figure.is_slower for figure in figures) else 0


def measure(checkouts: Mapping[str, Checkout], effort: Effort, repeats: int) -> list[Figure]:
    """The duration of a step, and of its watched part: a step's ratio to an unwatched one."""
    figures = []
    for spec, steps in effort.steps.items():
        duration, ratio = Figure(f"{spec} step", "ms"), Figure(f"{spec} step", "unwatched = 1")
        for seed in range(repeats):
            seconds = one_repeat(checkouts, spec, steps, effort.rounds, seed)
            sides = (BEFORE, CONTROL, AFTER)
            duration.add(*(1000 * median(seconds[side]) for side in sides))
            ratio.add(*(typical_ratio(seconds[BARE], seconds[side]) for side in sides))
        figures += [duration, ratio]
    return figures


def typical_ratio(bare: list[float], watched: list[float]) -> float:
    return Outcome("", Coverage(), True, bare, watched).ratio


def one_repeat(
    checkouts: Mapping[str, Checkout], spec: str, steps: int, rounds: int, seed: int
) -> dict[str, list[float]]:
    """Seconds per step of each side, one per round."""
    sides = {
        BARE: checkouts[AFTER],
        BEFORE: checkouts[BEFORE],
        CONTROL: checkouts[BEFORE],
        AFTER: checkouts[AFTER],
    }
    with ExitStack() as stack:
        workers = {side: Worker(stack, checkout, side, spec, seed) for side, checkout in sides.items()}
        seconds: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(WARMUP_PAIRS + rounds):
            for side in order(list(sides), number):
                seconds[side].append(workers[side].block(steps))
    return {side: values[WARMUP_PAIRS:] for side, values in seconds.items()}


def order(sides: list[str], number: int) -> list[str]:
    """Rotates by one place every two rounds and reverses every second round."""
    place = number // 2 % len(sides)
    rotated = sides[place:] + sides[:place]
    return rotated[:: -1 if number % 2 else 1]


class Worker:
    """A training process of one checkout, which runs a block of steps on request."""

    def __init__(self, stack: ExitStack, checkout: Checkout, side: str, spec: str, seed: int) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        watched = "bare" if side == BARE else "watched"
        self._side = side
        self._errors = Path(folder, "errors")
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", WORKER, watched, spec, str(seed), folder, str(checkout.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env=checkout.environment(),
            )
        stack.callback(self._stop)

    def block(self, steps: int) -> float:
        """Seconds per step. Raises CheckoutError where the process has ended."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # where the process has ended: its error follows
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            error = self._errors.read_text(errors="replace")[-1000:].strip()
            raise CheckoutError(f"the training process {self._side!r} ended: {error}")
        return float(line)

    def _stop(self) -> None:
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):  # where the process has ended already
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
