"""200 live streams for a while: 25 trainings of 8 ranks, each of which sends its last ten steps once a second."""

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

from ammeter.wire import columns, frames
from bench.collector.ingest import HEADERS
from bench.collector.servers import Line, Part
from bench.collector.synthetic_run import Rank, run_of

RUNS, RANKS = 25, 8
ROWS = 10
EVERY = 1.0
SENDERS = 8
KEPT = 500
"""Steps of numbers that a stream repeats."""

PAGES = 4
"""Pages of runs that are open. Each stays with a run for some messages of its /live, then goes to another."""

LOOKS = 20
PAUSE = 1.0
"""Seconds from one look at the collector's memory to the next."""

CHARTS = "scale,grad_norm,loss,val_loss,skipped"
"""What it draws."""

BEHIND = 3.0
"""Seconds that what a page shows may be behind, at most: of the moment right before it shows something newer."""

SENT = 0.99
"""Of the batches that were due, those that have to be sent: else the senders were slower than live streams are."""

FLAT = 1.05
"""What memory may have grown to by the end, from what it was after a third of the time, by a line through all of it."""


@dataclass
class Soaked:
    """What came of it. sent: of what was due, the share. behind: seconds; resident: bytes, at equal distances."""

    streams: int = 0
    seconds: float = 0.0
    values: int = 0
    cpu: float = 0.0
    errors: list[str] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    sent: float = 1.0

    @property
    def course(self) -> tuple[float, float]:
        """Bytes of memory after a third of the time and at last, by the line that fits what was seen in between."""
        later = self.resident[len(self.resident) // 3 :]
        if len(later) < 2:
            return float(later[0]), float(later[0])
        slope, begin = np.polyfit(np.arange(len(later)), later, 1)
        return float(begin), float(begin + slope * (len(later) - 1))

    @property
    def grown(self) -> float:
        begin, end = self.course
        return end / begin

    @property
    def holds(self) -> bool:
        return not self.errors and self.sent >= SENT and max(self.behind) <= BEHIND and self.grown <= FLAT

    @property
    def words(self) -> list[str]:
        p95 = quantiles(self.behind, n=20)[-1]
        begin, end = self.course
        slope = (end - begin) / 2**20 / (2 / 3 * self.seconds / 60)
        return [
            f"{self.streams} live streams of 1,200 columns and ten steps a second for {self.seconds / 60:.1f} minutes:"
            f" {self.values / self.seconds / 1e6:.2f} million values a second, {100 * self.sent:.1f} % of what was due,"
            f" {100 * self.cpu / self.seconds:.0f} % of one core, {len(self.errors)} errors"
            + "".join(f"; {each}" for each in self.errors[:3]),
            f"{PAGES} open pages of runs, right before they show what is new: {median(self.behind):.2f} s behind in the"
            f" middle, {p95:.2f} s of 95 in 100, {max(self.behind):.2f} s at most; {BEHIND:g} s are allowed.",
            f"Memory: {self.resident[0] / 2**20:.0f} MiB at first, {max(self.resident) / 2**20:.0f} MiB at most,"
            f" {self.resident[-1] / 2**20:.0f} MiB at last. From a third of the time on it grew by {slope:.2f} MiB a"
            f" minute, to {self.grown:.3f} times; {FLAT:g} are allowed. Minute by minute: {self._by_minute}.",
        ]

    @property
    def _by_minute(self) -> str:
        every = max(1, round(60 * len(self.resident) / max(self.seconds, 1)))
        return ", ".join(f"{each / 2**20:.0f}" for each in self.resident[every - 1 :: every])


def soak(part: Part, seconds: float, runs: int = RUNS, ranks: int = RANKS) -> Soaked:
    """Feeds a collector for so long, with pages open on it."""
    every = [_Live(rank) for _ in range(runs) for rank in run_of(ranks, KEPT, time.time_ns())]
    found = Soaked(streams=len(every))
    over = threading.Event()
    shown = [live for live in every if live.rank.rank == 0]
    threads = [
        threading.Thread(target=_send, args=(part.port, every[number::SENDERS], over, found))
        for number in range(SENDERS)
    ] + [threading.Thread(target=_follow, args=(part.port, shown, over, found, number)) for number in range(PAGES)]
    cpu, began = part.cpu(), time.monotonic()
    for thread in threads:
        thread.start()
    while time.monotonic() < began + seconds:
        time.sleep(min(PAUSE, seconds))
        found.resident.append(part.resident())
    over.set()
    for thread in threads:
        thread.join()
    found.seconds, found.cpu = time.monotonic() - began, part.cpu() - cpu
    found.values = sum(live.step for live in every) * every[0].rank.schema.width
    due = len(every) * ROWS * int(seconds / EVERY)
    found.sent = sum(live.step for live in every) / max(due, 1)
    return found


class _Live:
    """A rank that trains now. moment: when its last row that was acknowledged was made, in ns."""

    def __init__(self, rank: Rank) -> None:
        self.rank = replace(rank, begin=time.time_ns())
        self._numbers = self.rank.view
        self.step = 0
        self._offset = 0

    def send(self, line: Line) -> None:
        """Its next ROWS rows, the last of which was made now."""
        now, begin = time.time_ns(), self.step % (KEPT - ROWS)
        kept = self._numbers.rows(begin, begin + ROWS)
        steps = kept.steps - begin + self.step
        times = now - (steps[-1] - steps) * int(EVERY * 1e9 / ROWS)
        items: list[frames.Item] = [] if self.step else [self.rank.hello]
        items.append(columns.pack(replace(kept, steps=steps, times=times)))
        body = frames.encode_batch(frames.Batch(items=items))
        place = f"/api/v1/runs/{self.rank.run}/streams/{self.rank.stream}/frames"
        end = self._offset + len(body)
        line.post(f"{place}?offset={self._offset}&end={end}", body, HEADERS)
        self._offset, self.step = end, self.step + ROWS


def _send(port: int, several: Sequence[_Live], over: threading.Event, found: Soaked) -> None:
    due = time.monotonic()
    with Line(port) as line:
        while not over.is_set():
            for live in several:
                try:
                    live.send(line)
                except Exception as error:  # noqa: BLE001 - counted and told, the others go on
                    found.errors.append(f"{type(error).__name__}: {error}"[:200])
                    line.reset()
            due += EVERY
            over.wait(max(0.0, due - time.monotonic()))


def _follow(port: int, several: Sequence[_Live], over: threading.Event, found: Soaked, number: int) -> None:
    """An open page: is told of one run for a while, then of another."""
    chance = random.Random(number)
    while not any(live.step for live in several) and not over.wait(EVERY):
        pass
    while not over.is_set():
        there = [live for live in several if live.step]
        try:
            with Line(port) as told, Line(port) as asks:
                _look(told, asks, chance.choice(there), over, found)
        except Exception as error:  # noqa: BLE001 - counted and told, the page is opened again
            found.errors.append(f"{type(error).__name__}: {error}"[:200])


def _look(told: Line, asks: Line, live: _Live, over: threading.Event, found: Soaked) -> None:
    """Is told what changes, as the page of a run is, and asks each time for what it draws then; notes how old what it
    shows is right before it shows more."""
    path, newest, reached = f"/api/v1/runs/{live.rank.run}", 0.0, -1
    asks.get(path)
    asks.get(f"{path}/incidents?page_size=100")
    for _, message in zip(range(LOOKS), told.follow(f"{path}/live"), strict=False):
        if over.is_set():
            return
        if not message:
            continue
        asked = {"names": CHARTS, "rank": live.rank.rank, "points": 2000, "from": reached + 1}
        drawn = msgspec.json.decode(asks.get(f"{path}/series?{urlencode(asked)}"))["axes"]
        asks.get(f"{path}/events?page_size=25")
        if newest and drawn:
            found.behind.append(time.time() - newest)
        if drawn:
            newest, reached = max((each["times"][-1], each["steps"][-1]) for each in drawn)
