"""Sends the streams of all ranks to a collector as their shippers do, and measures the server's work.

Each rank waits only for its own responses.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice

import msgspec

from ammeter.wire import codec, frames
from bench.collector.servers import Connection, Server
from bench.collector.synthetic_run import Rank

HEADERS = {"Content-Type": frames.CONTENT_TYPE}
HEARTBEAT = codec.encode_batch(frames.Batch(items=[]))
IDLE_CHECK_SECONDS = 3.0
"""Interval after which a server's CPU time is read again until it is idle, so that deferred work is counted."""

IDLE_CPU_SHARE = 0.1
"""Largest CPU share of an idle server: its background threads wake up now and then, on a virtual machine at a cost."""

MAX_IDLE_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class IngestCost:
    """The work of one server for the values that it received.

    Attributes:
        cpu: CPU seconds until the last response.
        settled: CPU seconds including deferred work.
        came: Bytes of its files right after the last response; 0 where much of the data was in memory.
        stored: Bytes of its files after its deferred work.
        sent: Bytes of all request bodies.
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
        """Millions of values per second of CPU time, until the last response."""
        return self.values / max(self.cpu, 1e-9) / 1e6


class Sender:
    """The requests of one rank, in order. All bodies are encoded before the first is sent."""

    def __init__(self, rank: Rank, rows: int, *, max_batches: int | None = None, final_record: bool = True) -> None:
        """rows: steps in a request. final_record: whether the stream ends with its final record."""
        batches = list(islice(rank.batches(rows), max_batches))
        self.rank = rank
        blocks = [item for batch in batches for item in batch.items if isinstance(item, frames.Block)]
        self.values = sum(block.rows * block.columns for block in blocks)
        self._bodies = deque(codec.encode_batch(batch) for batch in (*batches, *([rank.bye()] if final_record else ())))
        self.requests = len(self._bodies)
        self.sent = sum(map(len, self._bodies))
        self._offset = 0

    def send(self, port: int) -> None:
        """Sends all remaining bodies."""
        with Connection(port) as connection:
            while self.send_next(connection):
                pass

    def send_next(self, connection: Connection) -> bool:
        """Sends the next body. Returns False where none is left."""
        if not self._bodies:
            return False
        body = self._bodies.popleft()
        end = self._offset + len(body)
        path = f"{self._path}?offset={self._offset}&end={end}"
        acknowledged = msgspec.json.decode(connection.post(path, body, HEADERS), type=frames.Ack).offset
        if acknowledged != end:
            raise RuntimeError(f"{path} was acknowledged up to {acknowledged}")
        self._offset = end
        return True

    def send_heartbeat(self, connection: Connection) -> None:
        connection.post(f"{self._path}?offset={self._offset}&end={self._offset}", HEARTBEAT, HEADERS)

    @property
    def _path(self) -> str:
        return f"/api/v1/runs/{self.rank.run}/streams/{self.rank.stream}/frames"


def feed(server: Server, senders: Sequence[Sender]) -> IngestCost:
    """Sends everything, with one connection per rank at the same time."""
    values, requests, sent = (
        sum(getattr(sender, name) for sender in senders) for name in ("values", "requests", "sent")
    )
    return measure_sends(server, [partial(sender.send, server.port) for sender in senders], values, requests, sent)


def measure_sends(
    server: Server, sends: Sequence[Callable[[], None]], values: int, requests: int, sent: int
) -> IngestCost:
    """Runs these functions in parallel and measures the server meanwhile and until it is idle."""
    before, began = server.cpu_seconds(), time.monotonic()
    run_in_parallel(sends)
    after, ended, came = server.cpu_seconds(), time.monotonic(), server.stored_bytes()
    settled = cpu_seconds_when_idle(server)
    return IngestCost(
        server.name,
        values,
        requests,
        after - before,
        settled - before,
        ended - began,
        came,
        server.stored_bytes(),
        sent,
    )


def run_in_parallel(functions: Sequence[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(functions)) as pool:
        for future in [pool.submit(function) for function in functions]:
            future.result()


def cpu_seconds_when_idle(server: Server) -> float:
    """CPU time of a server once it has done its deferred work."""
    end, before = time.monotonic() + MAX_IDLE_WAIT_SECONDS, server.cpu_seconds()
    while True:
        time.sleep(IDLE_CHECK_SECONDS)
        now = server.cpu_seconds()
        if now - before <= IDLE_CPU_SHARE * IDLE_CHECK_SECONDS or time.monotonic() > end:
            return now
        before = now
