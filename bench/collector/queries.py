"""How long answers take: curves, the list of runs, a scrape, and a batch that comes while one is scraped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median, quantiles
from urllib.parse import quote, urlencode

from ammeter_server.api.series import MOST_NAMES
from bench.collector.ingest import Sender, feed
from bench.collector.servers import DEADLINE, Line, Part
from bench.collector.synthetic_run import LOGGED, SCALARS_ONLY, WHOLE, Rank, run_of

POINTS = 2000
STATS = ("grad.norm", "grad.absmax")
OTHERS = ("loss", "scale", "grad_norm", *LOGGED[:3])
"""Two statistics of all tensors and these are 200 columns."""

AGO = 2 * 3600 * 10**9
"""ns since a run ended that is on /metrics no more."""

PAUSE = 0.01
"""Seconds between one batch's answer and the next batch, where it is looked how long they wait."""

BEAT = 8.0
"""Seconds in which every live stream says once that it is there."""

ALONE, MEANWHILE = "batch of one step, alone", "the same during scrapes"


def list_of(runs: int) -> str:
    return f"list of {runs:,} runs, first page"


def scrape_of(live: int) -> str:
    return f"/metrics with {live:,} live runs"


@dataclass(frozen=True)
class Asked:
    """How long one kind of answer took, in ms: in the middle, 95 in 100, at most. And how large it was."""

    what: str
    name: str
    median: float
    p95: float
    most: float
    size: int

    @property
    def words(self) -> str:
        return f"{self.median:.1f} ({self.p95:.1f}, {self.most:.1f})"


def columns_of(rank: Rank) -> list[str]:
    """200 names, as the collector's read API says them."""
    tensors = [tensor.name for tensor in rank.schema.tensors]
    return [*OTHERS, *(f"{stat}:{tensor}" for stat in STATS for tensor in tensors)]


def curves(part: Part, rank: Rank, names: Sequence[str], what: str, times: int, form: str = "json") -> Asked:
    """Series of one rank, in as many requests as it takes."""
    parts = [names[begin : begin + MOST_NAMES] for begin in range(0, len(names), MOST_NAMES)]
    said = [
        urlencode({"names": ",".join(each), "rank": rank.rank, "points": POINTS, "format": form}, quote_via=quote)
        for each in parts
    ]
    place = f"/api/v1/runs/{rank.run}/series?"
    with Line(part.port) as line:
        return _asked(part, what, lambda: sum(len(line.get(place + each)) for each in said), times)


def samples(part: Part, rank: Rank, matching: str, what: str, times: int) -> Asked:
    """The same of who speaks PromQL: the samples as they are."""
    seconds = int((rank.view.times[-1] - rank.begin) / 1e9) + 10
    query = f'{{__name__=~"{matching}",run="{rank.run}",rank="{rank.rank}"}}[{seconds}s]'
    said = urlencode({"query": query, "time": rank.view.times[-1] / 1e9 + 1})
    with Line(part.port) as line:
        return _asked(part, what, lambda: len(line.get(f"/api/v1/query?{said}")), times)


def matching(names: Sequence[str]) -> str:
    """These columns as a regular expression over the names that PromQL knows."""
    return "|".join(dict.fromkeys(name.partition(":")[0].replace(".", "_") for name in names))


def long_run(part: Part, steps: int, times: int) -> Asked:
    """One column of a run of so many steps, which is fed first."""
    (rank,) = run_of(1, steps, time.time_ns() - steps * 10**9, SCALARS_ONLY)
    feed(part, [Sender(rank, 1000)])
    return curves(part, rank, ["loss"], f"one column over {steps:,} steps", times)


def many_runs(part: Part, runs: int, live: int, times: int) -> list[Asked]:
    """The list of runs and the page's first of it, and a scrape, with so many runs, some of which still live. The
    others have ended two hours ago."""
    _send(part, runs - live, time.time_ns() - AGO, goodbye=True)
    with _living(part, _send(part, live, time.time_ns() - 10**10, goodbye=False)), Line(part.port) as line:
        _wait_for_judge(line, live)
        return [
            _asked(part, list_of(runs), lambda: len(line.get("/api/v1/runs")), 5 * times),
            _asked(part, scrape_of(live), lambda: len(line.get("/metrics")), times),
            *_held_up(part, times / 4),
        ]


def _send(part: Part, runs: int, begin: int, *, goodbye: bool) -> list[Sender]:
    senders = [Sender(run_of(1, 20, begin, SCALARS_ONLY)[0], 20, goodbye=goodbye) for _ in range(runs)]
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(sender.send, part.port) for sender in senders]:
            each.result()
    return senders


@contextmanager
def _living(part: Part, senders: Sequence[Sender]) -> Iterator[None]:
    """Keeps saying that these are there, for whoever is silent for 15 s is lost."""
    over = threading.Event()

    def beat() -> None:
        with Line(part.port) as line:
            for sender in cycle(senders):
                if over.wait(BEAT / len(senders)):
                    return
                sender.beat(line)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wait_for_judge(line: Line, live: int) -> None:
    """Until the judge has ended all runs but so many: those that it has not come to yet would be scraped as well."""
    until = time.monotonic() + DEADLINE
    while line.get("/metrics").count(b'state="running"} 1') > live:
        if time.monotonic() > until:
            raise RuntimeError(f"after {DEADLINE:.0f} s more than {live} runs are still running")
        time.sleep(1)


def _held_up(part: Part, seconds: float) -> list[Asked]:
    """How long batches of one step wait for their answer, alone and while /metrics is scraped all the time."""
    (rank,) = run_of(1, 2000, time.time_ns() - 2000 * 10**9, WHOLE)
    sender = Sender(rank, 1, goodbye=False)
    alone = _answered(part, sender, lambda: time.sleep(seconds))

    def scrape() -> None:
        until = time.monotonic() + seconds
        with Line(part.port) as line:
            while time.monotonic() < until:
                line.get("/metrics")

    meanwhile = _answered(part, sender, scrape)
    return [
        _times(ALONE, part.name, alone),
        _times(MEANWHILE, part.name, meanwhile),
    ]


def _answered(part: Part, sender: Sender, meanwhile: Callable[[], object]) -> list[float]:
    """Seconds that each batch took while something else was done."""
    over, took = threading.Event(), list[float]()

    def send() -> None:
        with Line(part.port) as line:
            while not over.is_set():
                began = time.perf_counter()
                if not sender.send_next(line):
                    break
                took.append(time.perf_counter() - began)
                over.wait(PAUSE)

    thread = threading.Thread(target=send)
    thread.start()
    meanwhile()
    over.set()
    thread.join()
    return took


def _asked(part: Part, what: str, ask: Callable[[], int], times: int) -> Asked:
    sizes, took = [ask()], []
    for _ in range(times):
        began = time.perf_counter()
        sizes.append(ask())
        took.append(time.perf_counter() - began)
    return _times(what, part.name, took, sizes[-1])


def _times(what: str, name: str, took: Sequence[float], size: int = 0) -> Asked:
    p95 = quantiles(took, n=20)[-1] if len(took) > 1 else took[0]
    return Asked(what, name, 1000 * median(took), 1000 * min(p95, max(took)), 1000 * max(took), size)
