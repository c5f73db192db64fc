"""Measures the collector and the other stores, in turn, each with an empty database."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.collector import latencies, other_stores, servers
from bench.collector.report import Results
from bench.collector.senders import Sender, feed
from bench.collector.servers import MissingError, Server
from bench.collector.synthetic_run import STEP_NS, Rank, new_run


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rows: For the collector: (steps in a request, steps of each rank).
        rows_of_databases: The same for the time series databases.
        row_per_sample, mlflow: Steps that go into a table with a row per sample, and into MLflow.
        long: Steps of the long run.
        runs, live: Runs in the list, and how many of them are live.
        times: Repetitions of each request whose latency is measured, in one turn.
        repeats: Turns, each of which measures every store.
    """

    ranks: int = 8
    rows: tuple[tuple[int, int], ...] = ((100, 2000), (10, 2000), (1, 500))
    rows_of_databases: tuple[tuple[int, int], ...] = ((100, 2000), (1, 200))
    row_per_sample: int = 1000
    mlflow: int = 20
    long: int = 1_000_000
    runs: int = 10_000
    live: int = 1_000
    times: int = 40
    repeats: int = 5


WARMUP_STEPS = 4
"""Steps that every rank sends first, without being counted: first requests are slower than others."""

QUICK = Plan(
    ranks=2,
    rows=((100, 400), (1, 50)),
    rows_of_databases=((100, 400),),
    row_per_sample=100,
    mlflow=2,
    long=20_000,
    runs=60,
    live=20,
    times=4,
    repeats=1,
)


def measure(plan: Plan, only: Sequence[str] = ("",)) -> Results:
    """Measures every store whose name contains one of these words, in turn."""
    results, began = Results(load=os.getloadavg()[0], repeats=plan.repeats, times=plan.times), time.monotonic()
    stores = [name for name in STORES if any(word.strip() in name for word in only)]
    for number in range(plan.repeats):
        begin = number % max(1, len(stores))
        for name in [*stores[begin:], *stores[:begin]]:
            turn = Results()
            with tempfile.TemporaryDirectory(prefix="ammeter-bench-") as folder:
                try:
                    STORES[name](plan, turn, Path(folder))
                except (MissingError, RuntimeError) as error:  # earlier turns of this store are kept
                    results.missing.append(f"{name}, from turn {number + 1}: {error}" if number else f"{name}: {error}")
                    stores = [other for other in stores if other != name]
                else:
                    results.merge(turn)
            print(f"{name}, {number + 1} of {plan.repeats}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    results.seconds = time.monotonic() - began
    return results


def _ammeter(plan: Plan, results: Results, folder: Path) -> None:
    for rows, steps in plan.rows:
        server = servers.collector(_empty(folder, f"ammeter-{rows}"))
        try:
            ranks = _ranks(plan, steps)
            feed(server, [Sender(rank, WARMUP_STEPS) for rank in _ranks(plan, WARMUP_STEPS)])
            results.add(rows, feed(server, [Sender(rank, rows) for rank in ranks]))
            if (rows, steps) == plan.rows[0]:
                _collector_latencies(plan, results, server, ranks[0])
        finally:
            server.stop()


def _collector_latencies(plan: Plan, results: Results, server: Server, rank: Rank) -> None:
    names, times = latencies.columns_of(rank), plan.times
    results.latencies += [
        latencies.curves(server, rank, ["loss"], _one_column(rank), times),
        latencies.curves(server, rank, names, _columns(rank, names), times),
        latencies.curves(server, rank, names, f"{_columns(rank, names)}, float32", times, "float32"),
        latencies.long_run(server, plan.long, times),
        *latencies.many_runs(server, plan.runs, plan.live, times),
    ]


def _database(start: Callable[[Path], Server], plan: Plan, results: Results, folder: Path) -> None:
    for rows, steps in plan.rows_of_databases:
        server = start(_empty(folder, f"{start.__name__}-{rows}"))
        try:
            ranks = _ranks(plan, steps)
            warmup = new_run(plan.ranks, WARMUP_STEPS, ranks[0].begin)
            other_stores.remote_write(server, warmup, WARMUP_STEPS, WARMUP_STEPS)
            cost = other_stores.remote_write(server, ranks, rows, steps)
            if (rows, steps) == plan.rows_of_databases[0]:
                rank, names = ranks[0], latencies.columns_of(ranks[0])
                pattern = latencies.matching(names)
                results.latencies += [
                    latencies.samples(server, rank, "loss", _one_column(rank), plan.times),
                    latencies.samples(server, rank, pattern, _columns(rank, names), plan.times),
                ]
        finally:
            server.stop()
        # Part of the data was in memory until the server stopped: its files are complete only now.
        results.add(rows, replace(cost, came=0, stored=server.stored_bytes()))


def _row_per_sample(plan: Plan, results: Results, folder: Path) -> None:
    rank = _ranks(plan, plan.row_per_sample)[0]
    results.add(100, other_stores.row_per_sample(folder, rank, 100, plan.row_per_sample))


def _mlflow(plan: Plan, results: Results, folder: Path) -> None:
    rank = _ranks(plan, plan.mlflow)[0]
    results.add(1, other_stores.mlflow(folder, rank, 1, plan.mlflow))


STORES: Mapping[str, Callable[[Plan, Results, Path], None]] = {
    "ammeter": _ammeter,
    "victoria-metrics": lambda plan, results, folder: _database(servers.victoria, plan, results, folder),
    "prometheus": lambda plan, results, folder: _database(servers.prometheus, plan, results, folder),
    "rows": _row_per_sample,
    "mlflow": _mlflow,
}


def _ranks(plan: Plan, steps: int) -> list[Rank]:
    return new_run(plan.ranks, steps, time.time_ns() - steps * STEP_NS)


def _one_column(rank: Rank) -> str:
    return f"one column over {rank.steps:,} steps"


def _columns(rank: Rank, names: Sequence[str]) -> str:
    return f"{len(names)} columns over {rank.steps:,} steps"


def _empty(folder: Path, name: str) -> Path:
    path = folder / name
    path.mkdir()
    return path
