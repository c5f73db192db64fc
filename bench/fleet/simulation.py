"""Simulates the batches of one collector's ranks, event by event, with an outage.

Ranks send as the shipper does: one request at a time, at a second of their own, all rows that have come since. After
an outage the ranks of a host return together, with the rows in their journals. The collector serves one batch after
the other, and refuses one that would wait for too long; it comes again.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from ammeter.shipper.answers import FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS
from ammeter.shipper.packing import MAX_ROWS, MAX_UNPACKED_BYTES
from ammeter.shipper.stream import FLUSH_ROWS, READ_BYTES
from ammeter_server.ingest.writer_queue import COMMIT_TIMEOUT_SECONDS
from bench.fleet.costs import Costs
from bench.fleet.scaling import Fleet

ROW_BYTES, VALUE_BYTES = 16, 4
RANKS_PER_HOST = 8


@dataclass(frozen=True)
class Scenario:
    """Seconds before, during and after the outage. jitter: mean time that a request takes to arrive."""

    before: float = 60.0
    outage: float = 600.0
    after: float = 120.0
    jitter: float = 0.02
    seed: int = 0


@dataclass
class Simulated:
    """Outcome of a simulation.

    Attributes:
        made, stored: Rows of all ranks.
        waits: Waits of stored batches before their service, with the time of their arrival.
        busy: Share of the time before the outage that the collector worked.
        drained: Seconds from the end of the outage until all rows from before that were stored.
    """

    made: int = 0
    stored: int = 0
    refused: int = 0
    busy: float = 0.0
    drained: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)

    def percentiles(self, begin: float, end: float) -> tuple[float, ...]:
        """The 50th, 95th and 99th percentile of the waits of batches that arrived in this time."""
        waits = [wait for arrival, wait in self.waits if begin <= arrival < end]
        return tuple(map(float, np.percentile(waits or [0.0], [50, 95, 99])))


class Simulation:
    """One collector with all ranks of a fleet. Rows are made until the end of the scenario, and all are delivered."""

    def __init__(self, fleet: Fleet, costs: Costs, scenario: Scenario) -> None:
        self._fleet, self._costs, self._scenario = fleet, costs, scenario
        self._random = np.random.default_rng(scenario.seed)
        self._phases = self._random.uniform(0, fleet.batch_seconds, fleet.ranks)
        self._first_rows = self._random.uniform(0, 1 / fleet.steps_per_second, fleet.ranks)
        self._down, self._up = scenario.before, scenario.before + scenario.outage
        self._end = self._up + scenario.after
        shape = (fleet.ranks // RANKS_PER_HOST + 1, RANKS_PER_HOST)
        waits = MAX_BACKOFF_SECONDS * self._random.uniform(0, 1, shape) * self._random.uniform(0.5, 1, shape)
        self._returns = self._up + waits.min(axis=1).repeat(RANKS_PER_HOST)  # of a host: with its first rank
        self._stored, self._failures = [0] * fleet.ranks, [0] * fleet.ranks
        self._arrivals: list[tuple[float, int, int]] = []
        row_bytes = ROW_BYTES + VALUE_BYTES * fleet.columns
        self._most_rows = max(1, min(MAX_ROWS, READ_BYTES // row_bytes, MAX_UNPACKED_BYTES // row_bytes))
        self._full_rows = max(1, min(FLUSH_ROWS, READ_BYTES // 4 // row_bytes))

    def run(self) -> Simulated:
        found, free = Simulated(), 0.0
        for rank in range(self._fleet.ranks):
            self._send_at_tick(rank, 0.0)
        while self._arrivals:
            arrival, rank, rows = heapq.heappop(self._arrivals)
            wait = max(0.0, free - arrival)
            if wait > COMMIT_TIMEOUT_SECONDS:
                found.refused += 1
                self._send_again(rank, arrival + COMMIT_TIMEOUT_SECONDS)
                continue
            seconds = self._costs.batch_seconds(rows * self._fleet.columns * self._fleet.share_read)
            free = arrival + wait + seconds
            found.waits.append((arrival, wait))
            found.busy += seconds / self._down if arrival < self._down else 0.0
            if self._stored[rank] < self._made(rank, self._up):
                found.drained = max(found.drained, free - self._up)
            self._stored[rank] += rows
            self._failures[rank] = 0
            if self._made(rank, free) - self._stored[rank] >= self._full_rows:
                self._send(rank, free)
            else:
                self._send_at_tick(rank, free)
        found.made = sum(self._made(rank, self._end) for rank in range(self._fleet.ranks))
        found.stored = sum(self._stored)
        return found

    def _made(self, rank: int, now: float) -> int:
        """Rows that a rank has made by now."""
        seconds = min(now, self._end) - float(self._first_rows[rank])
        return int(seconds * self._fleet.steps_per_second) + 1 if seconds >= 0 else 0

    def _send_at_tick(self, rank: int, now: float) -> None:
        """Sends at the next tick of the rank's own clock that finds a row, if one is still to come."""
        if self._stored[rank] < self._made(rank, self._end):
            next_row = float(self._first_rows[rank]) + self._stored[rank] / self._fleet.steps_per_second
            interval, phase = self._fleet.batch_seconds, float(self._phases[rank])
            ticks = int((max(now, next_row + 1e-9) - phase) // interval) + 1
            self._send(rank, phase + ticks * interval)

    def _send(self, rank: int, now: float) -> None:
        """Sends all rows that there are; in the outage, those that there are when the rank's host returns."""
        now = float(self._returns[rank]) if self._down <= now < self._returns[rank] else now
        rows = min(self._made(rank, now) - self._stored[rank], self._most_rows)
        heapq.heappush(self._arrivals, (now + self._random.exponential(self._scenario.jitter), rank, rows))

    def _send_again(self, rank: int, now: float) -> None:
        """Sends after a refusal and the wait that follows it, which doubles."""
        longest = min(MAX_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** self._failures[rank])
        self._failures[rank] += 1
        self._send(rank, now + longest * self._random.uniform(0.5, 1.0))
