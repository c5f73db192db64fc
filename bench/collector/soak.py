"""Sends 200 live streams for a while: 25 trainings of 8 ranks, each with ten steps once a second."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from urllib.parse import urlencode

import msgspec
import numpy as np

from ammeter.wire import codec, columns, frames
from bench.collector.senders import HEADERS
from bench.collector.servers import Connection, Server
from bench.collector.synthetic_run import Rank, new_run

RUNS, RANKS = 25, 8
BATCH_STEPS = 10
BATCH_SECONDS = 1.0
SENDER_THREADS = 8
REPEATED_STEPS = 500
"""Steps of values that a stream repeats."""

OPEN_PAGES = 4
"""Open pages of runs. Each follows a run's /live for some messages and then opens another run."""

MESSAGES_PER_PAGE = 20
MEMORY_INTERVAL_SECONDS = 1.0
"""Interval between two readings of the collector's memory."""

CHARTS = "scale,grad_norm,loss,val_loss,skipped"
"""Columns that the page draws."""

MAX_LAG_SECONDS = 3.0
"""Largest age of a page's newest point, taken right before the page shows a newer one."""

MIN_SENT_SHARE = 0.99
"""Share of the due batches that the senders have to send; otherwise they are slower than live streams."""

MAX_MEMORY_GROWTH = 1.05
"""Largest memory at the end, as a multiple of that after a third of the time, on a fitted line."""


@dataclass
class SoakResult:
    """Findings of a soak.

    Attributes:
        sent: Share of the due batches that were sent.
        lags: Ages of the pages' newest points in seconds.
        resident: Bytes of memory at equal intervals.
    """

    streams: int = 0
    seconds: float = 0.0
    values: int = 0
    cpu: float = 0.0
    errors: list[str] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    sent: float = 1.0

    @property
    def memory_line(self) -> tuple[float, float]:
        """Memory after a third of the time and at the end, on the line fitted to the readings."""
        later = self.resident[len(self.resident) // 3 :]
        if len(later) < 2:
            return float(later[0]), float(later[0])
        slope, begin = np.polyfit(np.arange(len(later)), later, 1)
        return float(begin), float(begin + slope * (len(later) - 1))

    @property
    def memory_growth(self) -> float:
        begin, end = self.memory_line
        return end / begin

    @property
    def passes(self) -> bool:
        return (
            not self.errors
            and self.sent >= MIN_SENT_SHARE
            and max(self.lags) <= MAX_LAG_SECONDS
            and self.memory_growth <= MAX_MEMORY_GROWTH
        )

    @property
    def lines(self) -> list[str]:
        p95 = quantiles(self.lags, n=20)[-1]
        begin, end = self.memory_line
        slope = (end - begin) / 2**20 / (2 / 3 * self.seconds / 60)
        return [
            f"{self.streams} live streams of 1,200 columns and ten steps a second for {self.seconds / 60:.1f} minutes:"
            f" {self.values / self.seconds / 1e6:.2f} million values a second,"
            f" {100 * self.sent:.1f} % of the due batches,"
            f" {100 * self.cpu / self.seconds:.0f} % of one core, {len(self.errors)} errors"
            + "".join(f"; {error}" for error in self.errors[:3]),
            f"{OPEN_PAGES} open pages of runs, right before each update: median lag {median(self.lags):.2f} s,"
            f" 95th percentile {p95:.2f} s, maximum {max(self.lags):.2f} s; the limit is {MAX_LAG_SECONDS:g} s.",
            f"Memory: {self.resident[0] / 2**20:.0f} MiB at first, {max(self.resident) / 2**20:.0f} MiB at most,"
            f" {self.resident[-1] / 2**20:.0f} MiB at the end. After a third of the time it grew by {slope:.2f} MiB a"
            f" minute, to {self.memory_growth:.3f} times; the limit is {MAX_MEMORY_GROWTH:g}."
            f" Minute by minute: {self._by_minute}.",
        ]

    @property
    def _by_minute(self) -> str:
        per_minute = max(1, round(60 * len(self.resident) / max(self.seconds, 1)))
        return ", ".join(f"{size / 2**20:.0f}" for size in self.resident[per_minute - 1 :: per_minute])


def soak(server: Server, seconds: float, runs: int = RUNS, ranks: int = RANKS) -> SoakResult:
    """Sends live streams to a collector for this long, with pages open on it."""
    streams = [_LiveStream(rank) for _ in range(runs) for rank in new_run(ranks, REPEATED_STEPS, time.time_ns())]
    result = SoakResult(streams=len(streams))
    done = threading.Event()
    shown = [stream for stream in streams if stream.rank.rank == 0]
    threads = [
        threading.Thread(target=_send, args=(server.port, streams[number::SENDER_THREADS], done, result))
        for number in range(SENDER_THREADS)
    ] + [
        threading.Thread(target=_open_pages, args=(server.port, shown, done, result, number))
        for number in range(OPEN_PAGES)
    ]
    cpu, began = server.cpu_seconds(), time.monotonic()
    for thread in threads:
        thread.start()
    while time.monotonic() < began + seconds:
        time.sleep(min(MEMORY_INTERVAL_SECONDS, seconds))
        result.resident.append(server.resident_bytes())
    done.set()
    for thread in threads:
        thread.join()
    result.seconds, result.cpu = time.monotonic() - began, server.cpu_seconds() - cpu
    result.values = sum(stream.step for stream in streams) * streams[0].rank.schema.width
    due = len(streams) * BATCH_STEPS * int(seconds / BATCH_SECONDS)
    result.sent = sum(stream.step for stream in streams) / max(due, 1)
    return result


class _LiveStream:
    """The stream of a rank that trains now."""

    def __init__(self, rank: Rank) -> None:
        self.rank = replace(rank, begin=time.time_ns())
        self._values = self.rank.view
        self.step = 0
        self._offset = 0

    def send(self, connection: Connection) -> None:
        """Sends the next rows, the last with the present time."""
        now, begin = time.time_ns(), self.step % (REPEATED_STEPS - BATCH_STEPS)
        repeated = self._values.rows(begin, begin + BATCH_STEPS)
        steps = repeated.steps - begin + self.step
        times = now - (steps[-1] - steps) * int(BATCH_SECONDS * 1e9 / BATCH_STEPS)
        items: list[frames.Item] = [] if self.step else [self.rank.hello]
        items.append(columns.pack(replace(repeated, steps=steps, times=times)))
        body = codec.encode_batch(frames.Batch(items=items))
        path = f"/api/v1/runs/{self.rank.run}/streams/{self.rank.stream}/frames"
        end = self._offset + len(body)
        connection.post(f"{path}?offset={self._offset}&end={end}", body, HEADERS)
        self._offset, self.step = end, self.step + BATCH_STEPS


def _send(port: int, streams: Sequence[_LiveStream], done: threading.Event, result: SoakResult) -> None:
    due = time.monotonic()
    with Connection(port) as connection:
        while not done.is_set():
            for stream in streams:
                try:
                    stream.send(connection)
                except Exception as error:  # noqa: BLE001 - counted and reported; the other streams continue
                    result.errors.append(f"{type(error).__name__}: {error}"[:200])
                    connection.reset()
            due += BATCH_SECONDS
            done.wait(max(0.0, due - time.monotonic()))


def _open_pages(
    port: int, streams: Sequence[_LiveStream], done: threading.Event, result: SoakResult, seed: int
) -> None:
    """Opens the page of one run after another."""
    rng = random.Random(seed)
    while not any(stream.step for stream in streams) and not done.wait(BATCH_SECONDS):
        pass
    while not done.is_set():
        started = [stream for stream in streams if stream.step]
        try:
            with Connection(port) as live, Connection(port) as requests:
                _show_page(live, requests, rng.choice(started), done, result)
        except Exception as error:  # noqa: BLE001 - counted and reported; the page is opened again
            result.errors.append(f"{type(error).__name__}: {error}"[:200])


def _show_page(
    live: Connection, requests: Connection, stream: _LiveStream, done: threading.Event, result: SoakResult
) -> None:
    """Reads what the page of a run reads after each live message, and records the lag before each update."""
    path, newest, reached = f"/api/v1/runs/{stream.rank.run}", 0.0, -1
    requests.get(path)
    requests.get(f"{path}/incidents?page_size=100")
    for _, message in zip(range(MESSAGES_PER_PAGE), live.follow(f"{path}/live"), strict=False):
        if done.is_set():
            return
        if not message:
            continue
        query = {"names": CHARTS, "rank": stream.rank.rank, "points": 2000, "from": reached + 1}
        drawn = msgspec.json.decode(requests.get(f"{path}/series?{urlencode(query)}"))["axes"]
        requests.get(f"{path}/events?page_size=25")
        if newest and drawn:
            result.lags.append(time.time() - newest)
        if drawn:
            newest, reached = max((axis["times"][-1], axis["steps"][-1]) for axis in drawn)
