"""What collecting costs: values per second of the server's CPU, bytes on disk, and how long answers take.

    make bench-collector [ARGS="--quick | --only ammeter,prometheus | --soak MINUTES | --write"]

Eight ranks of 1,200 columns over real HTTP into a real `ammeter-server serve` with its verdicts, and the same numbers
into VictoriaMetrics, Prometheus, MLflow and a table with a row per sample. A quarter of an hour on a machine that does
nothing else. --soak keeps 200 live streams going instead, and says what came of it. --write keeps collector.md and
collector.json in bench/results; then `python -m bench.common.readme` brings the figures into the README.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.collector import peers, soak
from bench.collector import queries as asking
from bench.collector import report as tables
from bench.collector import servers as parts
from bench.collector.ingest import Sender, feed
from bench.collector.report import Measured, Taken
from bench.collector.servers import MissingError, Part
from bench.collector.synthetic_run import NANOSECONDS, Rank, run_of
from bench.common.paths import RESULTS


@dataclass(frozen=True)
class Plan:
    """How much is measured. rows: (steps in a request, steps of each rank); rows_of_others: of remote write."""

    ranks: int = 8
    rows: tuple[tuple[int, int], ...] = ((100, 2000), (10, 2000), (1, 500))
    rows_of_others: tuple[tuple[int, int], ...] = ((100, 2000), (1, 200))
    row_per_sample: int = 1000
    mlflow: int = 20
    long: int = 1_000_000
    runs: int = 10_000
    live: int = 1_000
    times: int = 40


WARM = 4
"""Steps that every rank sends first, which are not counted: nobody's first request is like the others."""

QUICK = Plan(2, ((100, 400), (1, 50)), ((100, 400),), 100, 2, 20_000, 60, 20, 4)
"""Only to see that it works."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    for name in [each for each in os.environ if each.startswith("AMMETER_")]:
        del os.environ[name]
    plan = QUICK if options.quick else Plan()
    if options.soak:
        return _soak(60 * options.soak, options.write)
    measured = measure(plan, options.only.split(","))
    for line in tables.shown(measured):
        print(line)
    held = [] if options.quick or options.only else tables.limits(measured)
    for limit in held:
        print(limit.told)
    if options.write:
        measured.soak = _soaked(options.write)
        tables.write(measured, options.write, f'make bench-collector ARGS="{" ".join(arguments or sys.argv[1:])}"')
        print(f"written to {options.write}; for the README: python -m bench.common.readme")
    return 0 if all(limit.holds for limit in held) else 1


def measure(plan: Plan, only: Sequence[str] = ("",)) -> Measured:
    """Everything of a plan whose name has one of these words in it."""
    measured, began = Measured(load=os.getloadavg()[0]), time.monotonic()
    ways: dict[str, Callable[[Plan, Measured, Path], None]] = {
        "ammeter": _ammeter,
        "victoria-metrics": lambda plan, measured, folder: _database(parts.victoria, plan, measured, folder),
        "prometheus": lambda plan, measured, folder: _database(parts.prometheus, plan, measured, folder),
        "rows": _rows,
        "mlflow": _mlflow,
    }
    for name, way in ways.items():
        if not any(word.strip() in name for word in only):
            continue
        with tempfile.TemporaryDirectory(prefix="ammeter-bench-") as folder:
            try:
                way(plan, measured, Path(folder))
            except (MissingError, RuntimeError) as missing:  # what was measured before it is kept
                measured.missing.append(f"{name}: {missing}")
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    measured.seconds = time.monotonic() - began
    return measured


def _ammeter(plan: Plan, measured: Measured, folder: Path) -> None:
    for rows, steps in plan.rows:
        part = parts.collector(_empty(folder, f"ammeter-{rows}"))
        try:
            ranks = _ranks(plan, steps)
            feed(part, [Sender(rank, WARM) for rank in _ranks(plan, WARM)])
            measured.taken.append(Taken(rows, feed(part, [Sender(rank, rows) for rank in ranks])))
            if (rows, steps) == plan.rows[0]:
                _ask_ours(plan, measured, part, ranks[0])
        finally:
            part.stop()


def _ask_ours(plan: Plan, measured: Measured, part: Part, rank: Rank) -> None:
    names = asking.columns_of(rank)
    measured.asked += [
        asking.curves(part, rank, ["loss"], _one(rank), plan.times),
        asking.curves(part, rank, names, _many(rank, names), plan.times),
        asking.curves(part, rank, names, f"{_many(rank, names)}, float32", plan.times, "float32"),
        asking.long_run(part, plan.long, plan.times),
        *asking.many_runs(part, plan.runs, plan.live, plan.times),
    ]


def _database(start: Callable[[Path], Part], plan: Plan, measured: Measured, folder: Path) -> None:
    for rows, steps in plan.rows_of_others:
        part = start(_empty(folder, f"{start.__name__}-{rows}"))
        try:
            ranks = _ranks(plan, steps)
            peers.remote_write(part, run_of(plan.ranks, WARM, ranks[0].begin), WARM, WARM)
            fed = peers.remote_write(part, ranks, rows, steps)
            if (rows, steps) == plan.rows_of_others[0]:
                names, matching = asking.columns_of(ranks[0]), asking.matching
                measured.asked += [
                    asking.samples(part, ranks[0], "loss", _one(ranks[0]), plan.times),
                    asking.samples(part, ranks[0], matching(names), _many(ranks[0], names), plan.times),
                ]
        finally:
            part.stop()
        measured.taken.append(
            Taken(rows, replace(fed, came=0, stored=part.stored()))
        )  # some of it was in memory until now


def _rows(plan: Plan, measured: Measured, folder: Path) -> None:
    fed = peers.row_per_sample(folder, _ranks(plan, plan.row_per_sample)[0], 100, plan.row_per_sample)
    measured.taken.append(Taken(100, fed))


def _mlflow(plan: Plan, measured: Measured, folder: Path) -> None:
    measured.taken.append(Taken(1, peers.mlflow(folder, _ranks(plan, plan.mlflow)[0], 1, plan.mlflow)))


def _ranks(plan: Plan, steps: int) -> list[Rank]:
    return run_of(plan.ranks, steps, time.time_ns() - steps * NANOSECONDS)


def _one(rank: Rank) -> str:
    return f"one column over {rank.steps:,} steps"


def _many(rank: Rank, names: Sequence[str]) -> str:
    return f"{len(names)} columns over {rank.steps:,} steps"


def _empty(folder: Path, name: str) -> Path:
    found = folder / name
    found.mkdir()
    return found


def _soak(seconds: float, write: Path | None) -> int:
    with tempfile.TemporaryDirectory(prefix="ammeter-bench-") as folder:
        part = parts.collector(Path(folder))
        try:
            found = soak.soak(part, seconds)
        finally:
            part.stop()
    for line in found.words:
        print(line)
    if write:
        write.mkdir(parents=True, exist_ok=True)
        (write / SOAKED).write_text("\n".join(found.words) + "\n")
        print(f"kept in {write / SOAKED}; the next --write takes it along")
    return 0 if found.holds else 1


SOAKED = "collector-soak.txt"


def _soaked(folder: Path) -> list[str]:
    """What the last soak that was kept has come to."""
    kept = folder / SOAKED
    return kept.read_text().splitlines() if kept.is_file() else []


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only to see that it works: numbers are not worth keeping")
    parser.add_argument("--only", default="", metavar="WORDS", help="what has one of these words in its name")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="keep 200 live streams going for so long instead")
    parser.add_argument("--write", type=Path, nargs="?", const=RESULTS, metavar="FOLDER", help="keep the results")
    options = parser.parse_args(arguments)
    if options.write == RESULTS and (options.quick or options.only):
        parser.error("--quick and --only measure too little to be kept in bench/results; name another folder")
    return options


if __name__ == "__main__":
    sys.exit(main())
