"""How long from the overflow in the training process to a person: seconds until a real HTTP receiver was told.

    python -m bench.paging [--runs 20] [--write]

A collector in its default set-up, a receiver, and runs whose loss turns NaN at a step of its own, by each way that a
page can take. Alertmanager and Prometheus are configured as in alerts/, but that Prometheus scrapes and evaluates each
5 s. The clock starts when the optimizer's step with the NaN is over; agent, journal, shipper, collector, judge, outbox
and whoever is told by it are in between. It ends with 1 where a limit is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import httpx
import torch

import ammeter
from bench.common.paths import RESULTS
from tests import alerting
from tests.e2e.real import Collector, Receiver, wait_for
from tests.server.feeding import Stream, break_down, train

RESULT = RESULTS / "paging.md"
SCRAPE = EVALUATION = 5
GROUP_INTERVAL = 60
"""Seconds, as alerts/alertmanager.yaml has it for pages."""

STORM = 500
SETTLED = 8.0
"""Seconds until 500 new runs have been judged; shorter than those after which a silent one is held to be lost."""

ALERT = "AmmeterNonfiniteGradient"
"""Runs that break at once, and what they are told with."""

Arrived = Callable[[str], float | None]
"""When the page about a run came, if it has."""


@dataclass(frozen=True)
class Way:
    """limit: seconds that the slowest page may take. joins: whether all runs are of one project, which has been paged
    about already; else each is the first of its own."""

    name: str
    limit: float
    why: str
    open: Callable[[ExitStack, Path], tuple[Collector, Arrived]]
    joins: bool = False


def directly(stack: ExitStack, folder: Path) -> tuple[Collector, Arrived]:
    """The collector tells the receiver itself."""
    receiver = Receiver()
    stack.callback(receiver.stop)
    collector = _collector(stack, folder, "--notify", receiver.apprise)
    return collector, lambda run: next((at for at, told in receiver.received if run in told["message"]), None)


def posted(stack: ExitStack, folder: Path) -> tuple[Collector, Arrived]:
    """The collector posts to Alertmanager."""
    running, pager = stack.enter_context(alerting.alertmanager(folder / "alertmanager", {}))
    return _collector(stack, folder, "--alertmanager", running.url), _heard(pager)


def scraped(stack: ExitStack, folder: Path) -> tuple[Collector, Arrived]:
    """Prometheus scrapes the collector and tells Alertmanager."""
    running, pager = stack.enter_context(alerting.alertmanager(folder / "alertmanager", {}))
    collector = _collector(stack, folder)
    rules = httpx.get(f"{collector.url}/api/v1/rules").text
    configuration = alerting.shipped(collector.port, running.port, f"{SCRAPE}s")
    stack.callback(alerting.Prometheus(folder / "prometheus", configuration, rules).start().stop)
    return collector, _heard(pager)


WAYS = (
    Way("the collector tells an Apprise URL", 5, "5 s", directly),
    Way("the collector posts to Alertmanager, first of a group", 5, "5 s", posted),
    Way("the same, joins a group that was told", GROUP_INTERVAL + 2, "group_interval + 2 s", posted, joins=True),
    Way("Prometheus and Alertmanager", SCRAPE + EVALUATION + 5, "scrape + evaluation interval + 5 s", scraped),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20, help="runs that break, for each way (20; two at least)")
    parser.add_argument("--write", action="store_true", help="keep the figures in bench/results/paging.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = []
    for way in WAYS:
        seconds = measure(way, options.runs)
        found.append((way, seconds))
        print(row(way, seconds), flush=True)
    stormed = storm()
    print(stormed, flush=True)
    if options.write:
        RESULT.write_text(page(found, stormed))
    return 1 if any(max(seconds) > way.limit for way, seconds in found) else 0


def measure(way: Way, runs: int) -> list[float]:
    """Seconds of each run from the end of the broken step to the arrival of its page."""
    chance = random.Random(0)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        collector, arrived = way.open(stack, Path(folder))

        def page_of(run: ammeter.Run) -> float:
            return float(wait_for(lambda: arrived(run.id), "the page arrived", collector.log, 2 * GROUP_INTERVAL))

        def one(project: str) -> tuple[ammeter.Run, float]:
            return break_one(collector, Path(folder), project, chance)

        if way.joins:
            page_of(one("speech")[0])
        broken = [one("speech" if way.joins else f"speech-{number}") for number in range(runs)]
        seconds = [page_of(run) - overflow for run, overflow in broken]
        for run, _ in broken:
            run.close()
    return seconds


def storm() -> str:
    """What it comes to when many runs break at once, of which the collector posts to Alertmanager."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        running, pager = stack.enter_context(alerting.alertmanager(Path(folder) / "alertmanager", {}))
        collector = _collector(stack, Path(folder), "--alertmanager", running.url)
        client = stack.enter_context(httpx.Client(base_url=collector.url, timeout=60))
        senders = stack.enter_context(ThreadPoolExecutor(8))
        streams = [Stream(client, name=f"run-{number}", begin=time.time_ns()) for number in range(STORM)]
        for first, last in ((0, 3), (4, 7)):  # only a stream's second batch has a collector that knows it
            for stream in streams:
                train(stream, first, last)
            list(senders.map(Stream.send, streams))
        for stream in streams:
            break_down(stream, 8, 16)
            stream.pack()
        time.sleep(SETTLED)  # they have been running for long
        began = time.time()
        list(senders.map(Stream.send, streams))
        sent = time.time() - began

        def told() -> set[str]:
            return {alert["labels"]["run"] for each in pager.of(ALERT) for alert in each.alerts}

        wait_for(lambda: len(told()) == STORM, "all were told", collector.log, 2 * GROUP_INTERVAL)
        notified = pager.of(ALERT)
        first = len({alert["labels"]["run"] for alert in notified[0].alerts})
        return (
            f"{STORM} runs of one project that broke at once, within {sent:.1f} s as they were sent:"
            f" {len(notified)} notification{'s' * (len(notified) != 1)}, the first after {notified[0].at - began:.1f} s"
            f" with {first} of the runs, the last after {notified[-1].at - began:.1f} s."
        )


def break_one(collector: Collector, folder: Path, project: str, chance: random.Random) -> tuple[ammeter.Run, float]:
    """A run that trains until it overflows and a second longer, and when it did. It is left open."""
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = ammeter.watch(model, optimizer, scaler, url=collector.url, dir=folder / "journals", project=project)
    overflow, broken = 0.0, chance.randrange(5, 60)
    for step in range(broken + 40):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 16)).square().mean() * (float("nan") if step >= broken else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        overflow = overflow or (time.time() if step == broken else 0.0)
        time.sleep(0.02)
    return run, overflow


def row(way: Way, seconds: list[float]) -> str:
    """Its line of the table."""
    numbers = (median(seconds), quantiles(seconds, n=20, method="inclusive")[-1], max(seconds))
    told = " | ".join(f"{number:.2f}" for number in numbers)
    return f"| {way.name} | {len(seconds)} | {told} | {way.limit:g} ({way.why}) |"


def page(found: list[tuple[Way, list[float]]], stormed: str) -> str:
    """The whole of the result, as Markdown."""
    return "\n".join(
        [
            "# From the overflow to the page",
            "",
            "Seconds from the end of the step that overflowed, in the training process, to the page at a receiver; by "
            "the ways that a page can take.",
            "Alertmanager as `alerts/alertmanager.yaml` has it: it waits 1 s for others of a group, and tells those "
            f"that join it each {GROUP_INTERVAL} s; Prometheus scrapes and evaluates each {SCRAPE} s.",
            "Written by `python -m bench.paging --write`.",
            "",
            "| way | pages | p50 | p95 | slowest | limit |",
            "|---|---|---|---|---|---|",
            *(row(way, seconds) for way, seconds in found),
            "",
            stormed,
            "",
        ]
    )


def _collector(stack: ExitStack, folder: Path, *words: str) -> Collector:
    collector = Collector(folder, *words).start()
    stack.callback(collector.stop)
    return collector


def _heard(pager: alerting.Pager) -> Arrived:
    def arrived(run: str) -> float | None:
        told = (each.at for each in pager.told if any(alert["labels"].get("run") == run for alert in each.alerts))
        return next(told, None)

    return arrived


if __name__ == "__main__":
    sys.exit(main())
