"""Measures response times: curves, the list of runs, a scrape, and a batch that arrives during scrapes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import median, quantiles
from urllib.parse import quote, urlencode

from ammeter_server.api.series import MAX_NAMES
from bench.collector.senders import Sender, feed
from bench.collector.servers import TIMEOUT_SECONDS, Connection, Server
from bench.collector.synthetic_run import FULL_SCHEMA, LOGGED_SCALARS, SCALAR_SCHEMA, Rank, new_run

POINTS = 2000
STATS = ("grad.norm", "grad.absmax")
OTHER_COLUMNS = ("loss", "scale", "grad_norm", *LOGGED_SCALARS[:3])
"""These and two statistics of all tensors are 200 columns."""

ENDED_NS_AGO = 2 * 3600 * 10**9
"""Age of ended runs: old enough to be absent from /metrics."""

BATCH_PAUSE_SECONDS = 0.01
"""Pause between a batch's response and the next batch."""

HEARTBEAT_SECONDS = 8.0
"""Interval in which every live stream sends one heartbeat; streams silent for 15 s count as lost."""

BATCH_ALONE, BATCH_DURING_SCRAPES = "batch of one step, alone", "the same during scrapes"


def list_label(runs: int) -> str:
    return f"list of {runs:,} runs, first page"


def scrape_label(live: int) -> str:
    return f"/metrics with {live:,} live runs"


@dataclass(frozen=True)
class Latency:
    """Response times of one request in one turn in ms, and the size of the last response in bytes.

    Attributes:
        what: The request, in words.
        name: The server.
        most: The maximum.
    """

    what: str
    name: str
    median: float
    p95: float
    most: float
    size: int


def across(turns: Sequence[Latency]) -> Latency:
    """Several turns of the same request: medians of its median and of its 95th percentile, and its maximum."""
    typical = {name: median(getattr(turn, name) for turn in turns) for name in ("median", "p95")}
    return replace(turns[-1], **typical, most=max(turn.most for turn in turns))


def columns_of(rank: Rank) -> list[str]:
    """200 column names of the collector's read API."""
    tensors = [tensor.name for tensor in rank.schema.tensors]
    return [*OTHER_COLUMNS, *(f"{stat}:{tensor}" for stat in STATS for tensor in tensors)]


def curves(server: Server, rank: Rank, names: Sequence[str], what: str, times: int, form: str = "json") -> Latency:
    """Reads columns of one rank, in as many requests as their number needs."""
    parts = [names[begin : begin + MAX_NAMES] for begin in range(0, len(names), MAX_NAMES)]
    queries = [
        urlencode({"names": ",".join(part), "rank": rank.rank, "points": POINTS, "format": form}, quote_via=quote)
        for part in parts
    ]
    path = f"/api/v1/runs/{rank.run}/series?"
    with Connection(server.port) as connection:
        return _measure(server, what, lambda: sum(len(connection.get(path + query)) for query in queries), times)


def samples(server: Server, rank: Rank, matching: str, what: str, times: int) -> Latency:
    """Reads the same columns from a server with PromQL, as unchanged samples."""
    seconds = int((rank.view.times[-1] - rank.begin) / 1e9) + 10
    query = f'{{__name__=~"{matching}",run="{rank.run}",rank="{rank.rank}"}}[{seconds}s]'
    encoded = urlencode({"query": query, "time": rank.view.times[-1] / 1e9 + 1})
    with Connection(server.port) as connection:
        return _measure(server, what, lambda: len(connection.get(f"/api/v1/query?{encoded}")), times)


def matching(names: Sequence[str]) -> str:
    """A regular expression that matches these columns by their PromQL names."""
    return "|".join(dict.fromkeys(name.partition(":")[0].replace(".", "_") for name in names))


def long_run(server: Server, steps: int, times: int) -> Latency:
    """Reads one column of a run with this many steps, after sending that run."""
    (rank,) = new_run(1, steps, time.time_ns() - steps * 10**9, SCALAR_SCHEMA)
    feed(server, [Sender(rank, 1000)])
    return curves(server, rank, ["loss"], f"one column over {steps:,} steps", times)


def many_runs(server: Server, runs: int, live: int, times: int) -> list[Latency]:
    """Reads the list of runs and /metrics, and sends batches during scrapes, with `live` of `runs` runs live."""
    send_runs(server, runs - live, time.time_ns() - ENDED_NS_AGO, final_record=True)
    with (
        _heartbeats(server, send_runs(server, live, time.time_ns() - 10**10, final_record=False)),
        Connection(server.port) as connection,
    ):
        _wait_for_judge(connection, live)
        return [
            _measure(server, list_label(runs), lambda: len(connection.get("/api/v1/runs")), 5 * times),
            _measure(server, scrape_label(live), lambda: len(connection.get("/metrics")), times),
            *_batches_during_scrapes(server, times / 4),
        ]


def send_runs(server: Server, runs: int, begin: int, *, final_record: bool) -> list[Sender]:
    senders = [Sender(new_run(1, 20, begin, SCALAR_SCHEMA)[0], 20, final_record=final_record) for _ in range(runs)]
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(sender.send, server.port) for sender in senders]:
            future.result()
    return senders


@contextmanager
def _heartbeats(server: Server, senders: Sequence[Sender]) -> Iterator[None]:
    """Sends heartbeats of these streams in the background."""
    done = threading.Event()

    def send() -> None:
        with Connection(server.port) as connection:
            for sender in cycle(senders):
                if done.wait(HEARTBEAT_SECONDS / len(senders)):
                    return
                sender.send_heartbeat(connection)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _wait_for_judge(connection: Connection, live: int) -> None:
    """Waits until the judge has ended all runs but these; /metrics contains a run until it has ended."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while connection.get("/metrics").count(b'state="running"} 1') > live:
        if time.monotonic() > end:
            raise RuntimeError(f"after {TIMEOUT_SECONDS:.0f} s more than {live} runs are still running")
        time.sleep(1)


def _batches_during_scrapes(server: Server, seconds: float) -> list[Latency]:
    """Response times of batches of one step, alone and during continuous scrapes of /metrics."""
    (rank,) = new_run(1, 2000, time.time_ns() - 2000 * 10**9, FULL_SCHEMA)
    sender = Sender(rank, 1, final_record=False)
    alone = _send_during(server, sender, lambda: time.sleep(seconds))

    def scrape() -> None:
        end = time.monotonic() + seconds
        with Connection(server.port) as connection:
            while time.monotonic() < end:
                connection.get("/metrics")

    meanwhile = _send_during(server, sender, scrape)
    return [
        _latency(BATCH_ALONE, server.name, alone),
        _latency(BATCH_DURING_SCRAPES, server.name, meanwhile),
    ]


def _send_during(server: Server, sender: Sender, meanwhile: Callable[[], object]) -> list[float]:
    """Seconds of each batch that was sent while `meanwhile` ran."""
    done, durations = threading.Event(), list[float]()

    def send() -> None:
        with Connection(server.port) as connection:
            while not done.is_set():
                began = time.perf_counter()
                if not sender.send_next(connection):
                    break
                durations.append(time.perf_counter() - began)
                done.wait(BATCH_PAUSE_SECONDS)

    thread = threading.Thread(target=send)
    thread.start()
    meanwhile()
    done.set()
    thread.join()
    return durations


def _measure(server: Server, what: str, request: Callable[[], int], times: int) -> Latency:
    sizes, durations = [request()], []
    for _ in range(times):
        began = time.perf_counter()
        sizes.append(request())
        durations.append(time.perf_counter() - began)
    return _latency(what, server.name, durations, sizes[-1])


def _latency(what: str, name: str, durations: Sequence[float], size: int = 0) -> Latency:
    p95 = quantiles(durations, n=20)[-1] if len(durations) > 1 else durations[0]
    return Latency(what, name, 1000 * median(durations), 1000 * min(p95, max(durations)), 1000 * max(durations), size)
