"""Measures ingest on SQLite, on one PostgreSQL, and on a Citus cluster with two workers, in turn.

    python -m bench.collector.citus [--quick | --write]

Each repeat starts all databases anew and sends equal streams to each of them, in another order. Needs PostgreSQL; the
cluster needs its extension Citus. All run on this machine, so the result shows what the distribution costs, and not
what further machines bring. --write puts citus.md into bench/results.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console

from ammeter_server.db import connect, migrations
from bench.collector import postgresql, servers
from bench.collector.postgresql import Database
from bench.collector.senders import Sender, feed, run_in_parallel
from bench.collector.servers import MissingError
from bench.collector.synthetic_run import STEP_NS, new_run
from bench.common.machine import cpu_and_cores, drop_settings
from bench.common.options import benchmark_parser, parse_benchmark
from bench.common.tables import Row, markdown_table, terminal_table

SQLITE, POSTGRESQL, CITUS = "SQLite", "PostgreSQL", "Citus, 2 workers"
SCALE = 1e6
HEADINGS = (
    "steps per request",
    "stored in",
    "million values per second of CPU, collector",
    "with the database",
    "million values per second",
)


@dataclass(frozen=True)
class Effort:
    """rows: (steps in a request, steps of each rank)."""

    ranks: int
    rows: tuple[tuple[int, int], ...]
    repeats: int


FULL = Effort(ranks=4, rows=((1, 60), (10, 300), (100, 1000)), repeats=5)
QUICK = Effort(ranks=2, rows=((10, 50),), repeats=1)


@dataclass
class Rates:
    """Million values per second of each repeat: of CPU of the collector, of all processes, and of time."""

    collector: list[float] = field(default_factory=list)
    everything: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse_benchmark(
        benchmark_parser(__doc__, quick="only checks that everything runs; the numbers are too noisy to keep"),
        arguments,
    )
    drop_settings()
    effort, load, began = QUICK if options.quick else FULL, os.getloadavg()[0], time.monotonic()
    try:
        rates = measure(effort)
    except MissingError as error:
        print(error, file=sys.stderr)
        return 2
    rows = table(rates)
    Console(width=150).print(terminal_table(rows))
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        facts = f"{cpu_and_cores()}; load before: {load:.1f}; {(time.monotonic() - began) / 60:.1f} minutes"
        (options.write / "citus.md").write_text(markdown(rows, factors(rates), effort, facts))
        print(f"written to {options.write}")
    return 0


def measure(effort: Effort) -> dict[tuple[int, str], Rates]:
    """(steps in a request, database) -> its rates."""
    rates = {(rows, name): Rates() for rows, _ in effort.rows for name in STORES}
    for number in range(effort.repeats):
        for rows, steps in effort.rows:
            names = list(STORES)[number % len(STORES) :] + list(STORES)[: number % len(STORES)]
            for name in names:
                _measure_one(STORES[name], rates[rows, name], effort.ranks, rows, steps)
        print(f"repeat {number + 1} of {effort.repeats}", file=sys.stderr)
    return rates


def _measure_one(start: Callable[[Path], Iterator[Database]], rates: Rates, ranks: int, rows: int, steps: int) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ammeter-bench-")))
        database = stack.enter_context(contextmanager(start)(folder))
        server = servers.collector(folder, database.url)
        stack.callback(server.stop)
        run = new_run(ranks, steps, time.time_ns() - steps * STEP_NS)
        first = [Sender(rank, 4) for rank in new_run(ranks, 4, run[0].begin)]  # first requests are slower
        run_in_parallel([partial(sender.send, server.port) for sender in first])
        before = database.cpu_seconds()
        cost = feed(server, [Sender(rank, rows) for rank in run])
        used = database.cpu_seconds() - before
        rates.collector.append(cost.values / SCALE / cost.cpu)
        rates.everything.append(cost.values / SCALE / (cost.settled + used))
        rates.wall.append(cost.values / SCALE / cost.wall)


def _sqlite(_: Path) -> Iterator[Database]:
    yield Database("", [])


def _one_postgresql(_: Path) -> Iterator[Database]:
    with postgresql.server() as one:
        _migrate(one.url)
        yield Database(one.url, [one])


def _citus(_: Path) -> Iterator[Database]:
    with postgresql.citus_cluster(workers=2) as nodes:
        _migrate(nodes[0].url)
        yield Database(nodes[0].url, nodes)


STORES: Mapping[str, Callable[[Path], Iterator[Database]]] = {
    SQLITE: _sqlite,
    POSTGRESQL: _one_postgresql,
    CITUS: _citus,
}


def _migrate(url: str) -> None:
    store = connect(url)
    try:
        migrations.migrate(store)
    finally:
        store.close()


def table(rates: Mapping[tuple[int, str], Rates]) -> list[Row]:
    """Median of the repeats, and in brackets the smallest and the largest."""
    return [
        HEADINGS,
        *(
            (str(rows), name, _spread(of.collector), _spread(of.everything), _spread(of.wall))
            for (rows, name), of in rates.items()
        ),
    ]


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def factors(rates: Mapping[tuple[int, str], Rates]) -> str:
    """How many times the CPU of one PostgreSQL the cluster needs, by the medians of the table."""
    shown = {key: round(median(of.everything), 2) for key, of in rates.items()}
    sizes = [rows for rows, name in rates if name == CITUS]
    return ", ".join(f"{shown[rows, POSTGRESQL] / shown[rows, CITUS]:.1f} ({rows} steps)" for rows in sizes)


def markdown(rows: Sequence[Row], factors: str, effort: Effort, facts: str) -> str:
    lines = [
        "# One PostgreSQL and a cluster",
        "",
        f"{facts}; `python -m bench.collector.citus --write`.",
        "",
        f"{effort.ranks} ranks of 1,200 columns send their steps at the same time to a collector, with SQLite, one"
        " PostgreSQL, or a coordinator and two workers of Citus, all on this machine and with fsync. The median of"
        f" {effort.repeats} repeats in turn, and in brackets the smallest and the largest. With the database: CPU of"
        " the collector and of all processes of the database, until the collector is idle, its compaction included.",
        "",
        *markdown_table(rows),
        "",
        f"On one machine the cluster needs more CPU than one PostgreSQL, by these factors: {factors}, the collector"
        " included. Each"
        " statement passes a second server. The rates by the clock depend on other load of the machine. A cluster pays"
        " with further machines only, which were not measured: statements of ingest, judging and the page of a run"
        " touch one shard, and so one node beside the coordinator. `tests/server/db/test_citus_cluster.py`"
        " proves that with `EXPLAIN`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
