"""Measures what the fast path saves on steps of about 2 ms.

    python -m bench.agent.fast_path [--pairs 24] [--cpu-time] [--quick] [--write [FOLDER]]

Trains each model of SHORT_STEPS in alternating blocks of one process: bare, watched with the fast path, and watched
without it. The first row compares bare blocks with bare blocks; its distance from 1 is the error of the measurement.
--cpu-time measures the CPU time of the process, which hardly depends on the machine's other load.
The fast path stays in Ammeter while it saves at least REQUIRED_SHARE of a step: docs/decisions/0022.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

from bench.agent.ammeter_peers import Ammeter
from bench.agent.comparison import Outcome, Sampling, Skipped, compare
from bench.agent.peers import Nothing, Peer
from bench.agent.report import combined, quartiles
from bench.agent.training import SHORT_STEPS, Training, TrainingSpec
from bench.common.machine import cpu_model, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.tables import Row, markdown_table, terminal_table

REQUIRED_SHARE = 0.03
"""Least saving, as a share of a bare step, for which the fast path is worth its code."""

HEADINGS = ("training", "watched by", "bare ms", "watched ms", "ratio", "repeats", "pairs: quartile, median, quartile")


class WithFastPath(Ammeter):
    """The default preset; reports the share of its steps that used the fast path."""

    name = "ammeter, with the fast path"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._steps = self._fast_steps = 0

    def on_step_end(self, loss: torch.Tensor) -> None:
        self._steps += 1
        self._fast_steps += self._session.fast_path.active
        super().on_step_end(loss)

    def close(self) -> dict[str, float]:
        share = self._fast_steps / max(1, self._steps)
        return {**super().close(), "fast_steps": share}


class WithoutFastPath(WithFastPath):
    """The same session with the fast path disabled."""

    name = "ammeter, without the fast path"

    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__(training, folder)
        self._session.fast_path.disable()


PEERS: tuple[type[Peer], ...] = (Nothing, WithFastPath, WithoutFastPath)


@dataclass(frozen=True)
class Measurement:
    """The outcomes on one training: for each peer by name, one per repeat."""

    precision: str
    repeats: dict[str, list[Outcome]]

    @property
    def savings(self) -> list[float]:
        """Share of a bare step that the fast path saves, in each repeat."""
        pairs = zip(self.repeats[WithoutFastPath.name], self.repeats[WithFastPath.name], strict=True)
        return [without.ratio - fast.ratio for without, fast in pairs]

    @property
    def fast_share(self) -> float:
        """Share of the watched steps that used the fast path."""
        return combined(self.repeats[WithFastPath.name]).self_reported["fast_steps"]

    def rows(self) -> list[Row]:
        return [self._row(name, outcomes) for name, outcomes in self.repeats.items()]

    def conclusion(self) -> str:
        savings = [100 * saving for saving in self.savings]
        return (
            f"{self.precision}: the fast path saves {median(savings):.1f} % of a bare step "
            f"({len(savings)} repeats: {min(savings):.1f} to {max(savings):.1f}); "
            f"it is used in {100 * self.fast_share:.0f} % of the steps."
        )

    def _row(self, name: str, outcomes: Sequence[Outcome]) -> Row:
        every = combined(outcomes)
        ratios = [outcome.ratio for outcome in outcomes]
        return (
            self.precision,
            name,
            f"{1000 * median(every.bare):.3f}",
            f"{1000 * median(every.watched):.3f}",
            f"{median(ratios):.3f}",
            f"{len(ratios)}: {min(ratios):.3f} to {max(ratios):.3f}",
            " / ".join(f"{ratio:.3f}" for ratio in quartiles(every.pairs)),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the comparison. Returns 1 if the fast path saves less than REQUIRED_SHARE."""
    options = _options(arguments)
    drop_settings()
    console, load = Console(), os.getloadavg()[0]
    specs = SHORT_STEPS[:1] if options.quick else SHORT_STEPS
    clock = time.process_time if options.cpu_time else time.perf_counter
    sampling = Sampling(pairs=options.pairs, steps=options.steps, clock=clock)
    measurements = [measure(spec, sampling, options.repeats) for spec in specs]
    rows = [HEADINGS, *(row for measurement in measurements for row in measurement.rows())]
    machine = f"{cpu_model()}, {os.cpu_count()} cores, torch {torch.__version__}, load before: {load:.1f}"
    conclusions = [*(measurement.conclusion() for measurement in measurements), verdict(measurements)]
    console.print(terminal_table(rows, machine))
    for line in conclusions:
        console.print(line, highlight=False)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        (options.write / "fast_path.md").write_text(markdown(rows, machine, conclusions, options))
    return 0 if is_worth_it(measurements) else 1


def measure(spec: TrainingSpec, sampling: Sampling, repeats: int) -> Measurement:
    """Measures all peers in turn.

    Raises:
        RuntimeError: a peer could not be measured.
    """
    found: dict[str, list[Outcome]] = {peer.name: [] for peer in PEERS}
    for seed in range(repeats):
        for outcome in compare(spec, PEERS, sampling, seed=seed):
            if isinstance(outcome, Skipped):
                raise RuntimeError(f"{outcome.name} was not measured: {outcome.reason}")
            found[outcome.name].append(outcome)
    return Measurement(spec.precision, found)


def saving(measurements: Sequence[Measurement]) -> float:
    """Median saving over all trainings and repeats, as a share of a bare step."""
    return median(saving for measurement in measurements for saving in measurement.savings)


def is_worth_it(measurements: Sequence[Measurement]) -> bool:
    return saving(measurements) >= REQUIRED_SHARE


def verdict(measurements: Sequence[Measurement]) -> str:
    relation = "at least" if is_worth_it(measurements) else "less than"
    return f"All: {100 * saving(measurements):.1f} %, {relation} the required {100 * REQUIRED_SHARE:.0f} %."


def markdown(rows: Sequence[Row], machine: str, conclusions: Sequence[str], options: argparse.Namespace) -> str:
    clock = " --cpu-time" if options.cpu_time else ""
    command = f"python -m bench.agent.fast_path --pairs {options.pairs} --repeats {options.repeats}{clock} --write"
    lines = [
        "# What the fast path saves",
        "",
        f"{machine}. Blocks of {options.steps} steps in turn, `{command}`.",
        "",
        *markdown_table(rows),
        "",
        *(f"- {line}" for line in conclusions),
    ]
    return "\n".join(lines) + "\n"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = benchmark_parser(__doc__, quick="only checks that it runs, on one training")
    parser.add_argument("--pairs", type=int, default=24, help="pairs of blocks of each peer and repeat (24)")
    parser.add_argument("--steps", type=int, default=250, help="steps in a block (250)")
    parser.add_argument("--repeats", type=int, default=3, help="independent repeats (3)")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time instead of wall time, on a machine with load")
    options = parse_benchmark(parser, arguments)
    if options.quick:
        options.pairs, options.steps, options.repeats = 3, 20, 1
    return options


if __name__ == "__main__":
    sys.exit(main())
