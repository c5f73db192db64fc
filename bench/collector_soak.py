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

from ammeter import block, wire
from bench.collector_data import Rank, run_of
from bench.collector_feeding import HEADERS
from bench.collector_parts import Line, Part

RUNS, RANKS = 25, 8
ROWS = 10
EVERY = 1.0
SENDERS = 8
KEPT = 500
"""Steps of numbers that a stream repeats."""

BEHIND = 3.0
"""Seconds that what the page reads may be behind what a rank has sent for, at most."""

FLAT = 1.1
"""What memory may have grown to by the end, from what it was after a third of the time."""


@dataclass
class Soaked:
    """What came of it. behind: seconds; resident: bytes, at equal distances."""

    streams: int = 0
    seconds: float = 0.0
    values: int = 0
    cpu: float = 0.0
    errors: list[str] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    @property
    def grown(self) -> float:
        return self.resident[-1] / self.resident[len(self.resident) // 3]

    @property
    def holds(self) -> bool:
        return not self.errors and max(self.behind) <= BEHIND and self.grown <= FLAT

    @property
    def words(self) -> list[str]:
        p95 = quantiles(self.behind, n=20)[-1]
        return [
            f"{self.streams} live streams of 1,200 columns and ten steps a second for {self.seconds / 60:.1f} minutes:"
            f" {self.values / self.seconds / 1e6:.2f} million values a second,"
            f" {100 * self.cpu / self.seconds:.0f} % of one core, {len(self.errors)} errors"
            + "".join(f"; {each}" for each in self.errors[:3]),
            f"Behind what was sent, as the page reads it: {median(self.behind):.2f} s in the middle, {p95:.2f} s of 95"
            f" in 100, {max(self.behind):.2f} s at most; {BEHIND:g} s are allowed.",
            f"Memory: {self.resident[0] / 2**20:.0f} MiB at first, {max(self.resident) / 2**20:.0f} MiB at most,"
            f" {self.resident[-1] / 2**20:.0f} MiB at last: {self.grown:.2f} times that after a third of the time.",
        ]


def soak(part: Part, seconds: float, runs: int = RUNS, ranks: int = RANKS) -> Soaked:
    """Feeds a collector for so long, and looks at it meanwhile."""
    every = [_Live(rank) for _ in range(runs) for rank in run_of(ranks, KEPT, time.time_ns())]
    found = Soaked(streams=len(every))
    over = threading.Event()
    senders = [
        threading.Thread(target=_send, args=(part.port, every[number::SENDERS], over, found))
        for number in range(SENDERS)
    ]
    cpu, began = part.cpu(), time.monotonic()
    for thread in senders:
        thread.start()
    _watch(part, every, began + seconds, found)
    over.set()
    for thread in senders:
        thread.join()
    found.seconds, found.cpu = time.monotonic() - began, part.cpu() - cpu
    found.values = sum(live.step for live in every) * every[0].rank.schema.width
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
        items: list[wire.Item] = [] if self.step else [self.rank.hello]
        items.append(block.pack(replace(kept, steps=steps, times=times)))
        body = wire.encode_batch(wire.Batch(items=items))
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


def _watch(part: Part, every: Sequence[_Live], until: float, found: Soaked) -> None:
    """Reads now and then what the page reads of one of them."""
    chance = random.Random(0)
    time.sleep(2 * EVERY)
    with Line(part.port) as line:
        while time.monotonic() < until:
            live = chance.choice(every)
            asked = {"names": "loss", "rank": live.rank.rank, "from": max(0, live.step - 10 * ROWS)}
            said = msgspec.json.decode(line.get(f"/api/v1/runs/{live.rank.run}/series?{urlencode(asked)}"))
            found.behind.append(time.time() - said["items"][0]["times"][-1])
            found.resident.append(part.resident())
            time.sleep(0.5)
