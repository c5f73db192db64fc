"""The streams of all ranks to the collector, as their shippers send them: each rank waits for its own answers only."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from ammeter.wire import frames
from bench.collector.servers import Line, Part
from bench.collector.synthetic_run import Rank

HEADERS = {"Content-Type": frames.CONTENT_TYPE}
BEAT = frames.encode_batch(frames.Batch(items=[]))
SETTLED = 3.0
"""Seconds that a server is left alone after it was fed, again and again while it computes, so that what it puts off is
counted."""

BUSY = 0.05
"""Share of a core that a server computes with nothing to do, at most: it looks whether there is."""

LONGEST = 120.0


@dataclass(frozen=True)
class Fed:
    """What a server took, and what that cost it. settled: CPU seconds with what it put off.

    came: bytes of its files at once, 0 where much of it was in memory; stored: when it was done.
    """

    name: str
    values: int
    requests: int
    cpu: float
    settled: float
    wall: float
    came: int
    stored: int
    sent: int

    @property
    def rate(self) -> float:
        """Millions of values per second of its CPU time, from the first request to the last answer."""
        return self.values / max(self.cpu, 1e-9) / 1e6


class Sender:
    """One rank's requests, in order. All bodies are made before the first is sent."""

    def __init__(self, rank: Rank, rows: int, *, most: int | None = None, goodbye: bool = True) -> None:
        batches = list(islice(rank.batches(rows), most))
        self.rank = rank
        blocks = [item for each in batches for item in each.items if isinstance(item, frames.Block)]
        self.values = sum(each.rows * each.columns for each in blocks)
        self._bodies = deque(frames.encode_batch(each) for each in (*batches, *([rank.bye()] if goodbye else ())))
        self.requests = len(self._bodies)
        self.sent = sum(map(len, self._bodies))
        self._offset = 0

    def send(self, port: int) -> None:
        """Sends all that are left."""
        with Line(port) as line:
            while self.send_next(line):
                pass

    def send_next(self, line: Line) -> bool:
        """Sends the next body. Returns False where none is left."""
        if not self._bodies:
            return False
        body = self._bodies.popleft()
        end = self._offset + len(body)
        place = f"/api/v1/runs/{self.rank.run}/streams/{self.rank.stream}/frames?offset={self._offset}&end={end}"
        taken = msgspec.json.decode(line.post(place, body, HEADERS), type=frames.Ack).offset
        if taken != end:
            raise RuntimeError(f"{place} was acknowledged up to {taken}")
        self._offset = end
        return True

    def beat(self, line: Line) -> None:
        """Says that the stream is there, with nothing new."""
        place = f"/api/v1/runs/{self.rank.run}/streams/{self.rank.stream}/frames"
        line.post(f"{place}?offset={self._offset}&end={self._offset}", BEAT, HEADERS)


def feed(part: Part, senders: Sequence[Sender]) -> Fed:
    """Sends everything at once, one connection per rank."""
    values, requests, sent = (sum(getattr(each, name) for each in senders) for name in ("values", "requests", "sent"))
    return counted(part, [partial(each.send, part.port) for each in senders], values, requests, sent)


def counted(part: Part, sends: Sequence[Callable[[], None]], values: int, requests: int, sent: int) -> Fed:
    """Runs all of these at once and looks at what the server did meanwhile."""
    before, began = part.cpu(), time.monotonic()
    with ThreadPoolExecutor(len(sends)) as pool:
        for each in [pool.submit(send) for send in sends]:
            each.result()
    after, ended, came = part.cpu(), time.monotonic(), part.stored()
    settled = _settled(part)
    return Fed(part.name, values, requests, after - before, settled - before, ended - began, came, part.stored(), sent)


def _settled(part: Part) -> float:
    """CPU seconds of a server once it is done."""
    until, before = time.monotonic() + LONGEST, part.cpu()
    while True:
        time.sleep(SETTLED)
        now = part.cpu()
        if now - before <= BUSY * SETTLED or time.monotonic() > until:
            return now
        before = now
