"""Compares the collectors of two checkouts: CPU time of ingest and response times, in turn.

Each repeat starts three servers with empty databases: one of this checkout, and two of the other. They receive equal
streams and requests in turn, so that all see the same state of the machine.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console

from bench.collector import servers
from bench.collector.latencies import POINTS
from bench.collector.senders import Sender, cpu_seconds_when_idle, run_in_parallel
from bench.collector.servers import Connection, MissingError, Server
from bench.collector.synthetic_run import STEP_NS, new_run
from bench.common.checkouts import AFTER, BEFORE, CONTROL, HEADINGS, Checkout, CheckoutError, Figure, conclusion
from bench.common.paths import ROOT
from bench.common.tables import terminal_table

SIDES = (BEFORE, CONTROL, AFTER)


@dataclass(frozen=True)
class Effort:
    """Amount of work in a repeat.

    Attributes:
        rows: For each kind of request: (steps in a request, steps of each rank in a round).
    """

    ranks: int
    rows: tuple[tuple[int, int], ...]
    rounds: int
    requests: int
    repeats: int


FULL = Effort(ranks=4, rows=((100, 1000), (1, 40)), rounds=6, requests=30, repeats=5)
QUICK = Effort(ranks=2, rows=((100, 200),), rounds=1, requests=5, repeats=1)


def main(other: Path, *, quick: bool) -> int:
    """Prints the comparison. Returns 1 if this checkout is slower, 2 if the other one cannot be measured."""
    console = Console()
    effort = QUICK if quick else FULL
    try:
        checkouts = {BEFORE: Checkout.at(other), AFTER: Checkout.at(ROOT)}
        figures = measure(checkouts, effort)
    except (CheckoutError, MissingError) as error:
        console.print(str(error), highlight=False)
        return 2
    for side, checkout in checkouts.items():
        console.print(f"{side}: {checkout}", highlight=False)
    console.print(terminal_table([HEADINGS, *(figure.row for figure in figures)]))
    console.print(conclusion(figures), highlight=False)
    return 1 if any(figure.is_slower for figure in figures) else 0


def measure(checkouts: Mapping[str, Checkout], effort: Effort) -> list[Figure]:
    figures: dict[str, Figure] = {}
    for _ in range(effort.repeats):
        with ExitStack() as stack:
            running = {side: _started(stack, checkouts[AFTER if side == AFTER else BEFORE]) for side in SIDES}
            for rows, steps in effort.rows:
                figure = figures.setdefault(f"cpu {rows}", Figure(f"CPU, {rows} steps per request", "s"))
                figure.add(*_ingest_cpu(running, effort, rows, steps))
            for name, durations in _response_ms(running, effort).items():
                figure = figures.setdefault(name, Figure(f"{name}, median", "ms"))
                figure.add(*(median(durations[side]) for side in SIDES))
    return list(figures.values())


def _started(stack: ExitStack, checkout: Checkout) -> Server:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ammeter-bench-")))
    server = servers.collector(folder, environment=checkout.environment())
    stack.callback(server.stop)
    return server


def _ingest_cpu(running: Mapping[str, Server], effort: Effort, rows: int, steps: int) -> list[float]:
    """CPU seconds of each server for equal streams, with deferred work."""
    before = {side: cpu_seconds_when_idle(server) for side, server in running.items()}
    for number in range(effort.rounds):
        for side in _order(number):
            _send_run(running[side], effort.ranks, rows, steps)
    return [cpu_seconds_when_idle(running[side]) - before[side] for side in SIDES]


def _send_run(server: Server, ranks: int, rows: int, steps: int) -> str:
    """Sends a new run and returns its id."""
    run = new_run(ranks, steps, time.time_ns() - steps * STEP_NS)
    senders = [Sender(rank, rows) for rank in run]
    run_in_parallel([lambda sender=sender: sender.send(server.port) for sender in senders])  # type: ignore[misc]
    return run[0].run


def _response_ms(running: Mapping[str, Server], effort: Effort) -> dict[str, dict[str, list[float]]]:
    """Response times by request and side."""
    rows, steps = effort.rows[0]
    runs = {side: _send_run(server, 1, rows, steps) for side, server in running.items()}
    requests: dict[str, Callable[[str], str]] = {
        "one curve": lambda run: f"/api/v1/runs/{run}/series?names=loss&rank=0&points={POINTS}",
        "list of runs": lambda _: "/api/v1/runs",
        "scrape": lambda _: "/metrics",
    }
    durations: dict[str, dict[str, list[float]]] = {name: {side: [] for side in SIDES} for name in requests}
    for number in range(1 + effort.requests):
        for name, path in requests.items():
            for side in _order(number):
                with Connection(running[side].port) as connection:
                    began = time.perf_counter()
                    connection.get(path(runs[side]))
                    if number:  # the first request of each kind does not count
                        durations[name][side].append(1000 * (time.perf_counter() - began))
    return durations


def _order(number: int) -> tuple[str, ...]:
    """Rotates by one place every two rounds and reverses every second round."""
    place = number // 2 % len(SIDES)
    rotated = SIDES[place:] + SIDES[:place]
    return rotated[:: -1 if number % 2 else 1]
