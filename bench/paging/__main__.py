"""Measures the seconds from an overflow in the training process to the notification at a real HTTP receiver.

    python -m bench.paging [--runs 20] [--quick] [--write]

Starts a collector with default settings and a receiver, and trains runs whose loss turns NaN at a random step, for
each route of a notification. Alertmanager and Prometheus have the configuration in alerts/, but Prometheus scrapes and
evaluates every 5 s. The clock starts at the end of the optimizer step with the NaN; agent, journal, shipper, collector,
judge, outbox and the notified service lie in between. Exits with 1 if a limit is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx
import torch

import ammeter
from bench.common.paths import RESULTS
from bench.common.tables import markdown_table
from tests import alerting
from tests.e2e.processes import Collector, Receiver, wait_for
from tests.server.feeding import Stream, break_down, train

RESULT = RESULTS / "paging.md"
SCRAPE_SECONDS = EVALUATION_SECONDS = 5
GROUP_INTERVAL_SECONDS = 60
"""The group_interval of pages in alerts/alertmanager.yaml."""

MAX_WAIT_SECONDS = 2 * GROUP_INTERVAL_SECONDS
"""Longest wait for a page."""

STORM_RUNS = 500
"""Runs that break at the same time."""

JUDGED_SECONDS = 8.0
"""Time in which the judge evaluates 500 new runs; shorter than the time after which a silent run counts as lost."""

STORM_ALERT = "AmmeterNonfiniteGradient"

ArrivalOf = Callable[[str], float | None]
"""Returns the arrival time of a run's page, or None before it."""


@dataclass(frozen=True)
class Route:
    """A route of a page.

    Attributes:
        limit: Seconds allowed for the slowest page.
        reason: Derivation of the limit.
        joins: Whether all runs belong to one project with an earlier page; otherwise each has a project of its own.
    """

    name: str
    limit: float
    reason: str
    open: Callable[[ExitStack, Path], tuple[Collector, ArrivalOf]]
    joins: bool = False


def apprise_route(stack: ExitStack, folder: Path) -> tuple[Collector, ArrivalOf]:
    """The collector notifies the receiver itself."""
    receiver = Receiver()
    stack.callback(receiver.stop)
    collector = _collector(stack, folder, "--notify", receiver.apprise)
    return collector, lambda run: next((at for at, body in receiver.received if run in body["message"]), None)


def alertmanager_route(stack: ExitStack, folder: Path) -> tuple[Collector, ArrivalOf]:
    """The collector posts to Alertmanager."""
    running, pager = stack.enter_context(alerting.alertmanager(folder / "alertmanager", {}))
    return _collector(stack, folder, "--alertmanager", running.url), _arrival_at(pager)


def prometheus_route(stack: ExitStack, folder: Path) -> tuple[Collector, ArrivalOf]:
    """Prometheus scrapes the collector and posts to Alertmanager."""
    running, pager = stack.enter_context(alerting.alertmanager(folder / "alertmanager", {}))
    collector = _collector(stack, folder)
    rules = httpx.get(f"{collector.url}/api/v1/rules").text
    configuration = alerting.shipped(collector.port, running.port, f"{SCRAPE_SECONDS}s")
    stack.callback(alerting.Prometheus(folder / "prometheus", configuration, rules).start().stop)
    return collector, _arrival_at(pager)


JOIN_LIMIT_SECONDS = GROUP_INTERVAL_SECONDS + 2
PROMETHEUS_LIMIT_SECONDS = SCRAPE_SECONDS + EVALUATION_SECONDS + 5

ROUTES = (
    Route("the collector tells an Apprise URL", 5, "5 s", apprise_route),
    Route("the collector posts to Alertmanager, first of a group", 5, "5 s", alertmanager_route),
    Route(
        "the same, joins a group that was told",
        GROUP_INTERVAL_SECONDS + 2,
        "group_interval + 2 s",
        alertmanager_route,
        joins=True,
    ),
    Route(
        "Prometheus and Alertmanager",
        SCRAPE_SECONDS + EVALUATION_SECONDS + 5,
        "scrape + evaluation interval + 5 s",
        prometheus_route,
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs that break, for each route (20; two at least)")
    parser.add_argument("--quick", action="store_true", help="only checks that it runs: two runs, the direct routes")
    parser.add_argument("--write", action="store_true", help="write the figures to bench/results/paging.md")
    options = parser.parse_args(arguments)
    if options.quick and options.write:
        parser.error("--quick measures too little for bench/results; leave out --write")
    torch.set_num_threads(1)
    measured = []
    for route in ROUTES[:2] if options.quick else ROUTES:
        seconds = measure(route, 2 if options.quick else options.runs)
        measured.append((route, seconds))
        print(row(route, seconds), flush=True)
    if not options.quick:
        storm_line = storm()
        print(storm_line, flush=True)
        if options.write:
            RESULT.write_text(markdown(measured, storm_line))
    return 1 if any(max(seconds) > route.limit for route, seconds in measured) else 0


def measure(route: Route, runs: int) -> list[float]:
    """Seconds of each run from the end of the broken step to the arrival of its page."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        collector, arrival_of = route.open(stack, Path(folder))

        def page_of(run: ammeter.Run) -> float:
            return float(wait_for(lambda: arrival_of(run.id), "the page arrived", collector.log, MAX_WAIT_SECONDS))

        def break_run(project: str) -> tuple[ammeter.Run, float]:
            return break_one(collector, Path(folder), project, rng)

        if route.joins:
            page_of(break_run("speech")[0])
        broken = [break_run("speech" if route.joins else f"speech-{number}") for number in range(runs)]
        seconds = [page_of(run) - overflow for run, overflow in broken]
        for run, _ in broken:
            run.close()
    return seconds


def storm() -> str:
    """Breaks many runs at once and describes the notifications that Alertmanager sends."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running, pager = stack.enter_context(alerting.alertmanager(Path(folder) / "alertmanager", {}))
        collector = _collector(stack, Path(folder), "--alertmanager", running.url)
        client = stack.enter_context(httpx.Client(base_url=collector.url, timeout=60))
        senders = stack.enter_context(ThreadPoolExecutor(8))
        streams = [Stream(client, name=f"run-{number}", begin=time.time_ns()) for number in range(STORM_RUNS)]
        for first, last in ((0, 3), (4, 7)):  # the collector knows a stream only from its second batch on
            for stream in streams:
                train(stream, first, last)
            list(senders.map(Stream.send, streams))
        for stream in streams:
            break_down(stream, 8, 16)
            stream.pack()
        time.sleep(JUDGED_SECONDS)  # the judge has seen them all
        began = time.time()
        list(senders.map(Stream.send, streams))
        sent = time.time() - began

        def notified_runs() -> set[str]:
            return {alert["labels"]["run"] for page in pager.of(STORM_ALERT) for alert in page.alerts}

        wait_for(
            lambda: len(notified_runs()) == STORM_RUNS,
            "all runs were notified",
            collector.log,
            2 * GROUP_INTERVAL_SECONDS,
        )
        notified = pager.of(STORM_ALERT)
        first = len({alert["labels"]["run"] for alert in notified[0].alerts})
        return (
            f"{STORM_RUNS} runs of one project that broke at once, within {sent:.1f} s as they were sent:"
            f" {len(notified)} notification{'s' * (len(notified) != 1)}, the first after {notified[0].at - began:.1f} s"
            f" with {first} of the runs, the last after {notified[-1].at - began:.1f} s."
        )


def break_one(collector: Collector, folder: Path, project: str, rng: random.Random) -> tuple[ammeter.Run, float]:
    """Trains a run until a second after it overflows. Returns the open run and the time of the overflow."""
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = ammeter.watch(model, optimizer, scaler, url=collector.url, dir=folder / "journals", project=project)
    overflow, broken = 0.0, rng.randrange(5, 60)
    for step in range(broken + 40):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).square().mean() * (float("nan") if step >= broken else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        overflow = overflow or (time.time() if step == broken else 0.0)
        time.sleep(0.02)
    return run, overflow


def row(route: Route, seconds: list[float]) -> str:
    """The route's row of the table."""
    numbers = (median(seconds), quantiles(seconds, n=20, method="inclusive")[-1], max(seconds))
    cells = " | ".join(f"{number:.2f}" for number in numbers)
    return f"| {route.name} | {len(seconds)} | {cells} | {route.limit:g} ({route.reason}) |"


def markdown(measured: list[tuple[Route, list[float]]], storm_line: str) -> str:
    headings = ("way", "pages", "p50", "p95", "slowest", "limit")
    return "\n".join(
        [
            "# From the overflow to the page",
            "",
            "Seconds from the end of the step that overflowed, in the training process, to the page at a receiver, for "
            "each route of a page.",
            "Alertmanager is configured by `alerts/alertmanager.yaml`: it waits 1 s for other alerts of a group, and "
            f"notifies about alerts that join a group every {GROUP_INTERVAL_SECONDS} s. Prometheus scrapes and "
            f"evaluates every {SCRAPE_SECONDS} s.",
            "Written by `python -m bench.paging --write`.",
            "",
            *markdown_table([headings]),
            *(row(route, seconds) for route, seconds in measured),
            "",
            storm_line,
            "",
        ]
    )


def _collector(stack: ExitStack, folder: Path, *arguments: str) -> Collector:
    collector = Collector(folder, *arguments).start()
    stack.callback(collector.stop)
    return collector


def _arrival_at(pager: alerting.Pager) -> ArrivalOf:
    def arrival_of(run: str) -> float | None:
        arrivals = (
            page.at for page in pager.notifications if any(alert["labels"].get("run") == run for alert in page.alerts)
        )
        return next(arrivals, None)

    return arrival_of


if __name__ == "__main__":
    sys.exit(main())
