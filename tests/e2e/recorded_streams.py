"""Sixteen streams of five runs, healthy and broken, and a sender that follows the protocol."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from ammeter import journal
from ammeter.journal import Entry, Journal
from ammeter.shipper.answers import Answer
from ammeter.shipper.http import Collector
from ammeter.shipper.packing import build_payload
from ammeter.wire import columns, frames
from ammeter.wire.frames import Batch, Event, Hello, Schema, Steps
from ammeter_server.db import Connection
from tests.agent.stream_builder import Stream, warm
from tests.e2e import stored

PROJECT = "sixteen"
STEPS = 650
SEED = 20
OLDEST = 600 * 10**9
"""Age of the runs in ns: no step is in the future, none a day old."""


def overflows(rank: int) -> Stream:
    """A run of eight ranks that share gradients: the scale halves for twelve steps.

    Later rank 3 skips a step that the others apply, and continues with its own scale.
    """
    stream = _warm(rank, 8)
    stream.dice = np.random.default_rng(SEED)
    for step in range(12):
        stream.bad(65536.0 / 2**step, last=3, inf=True)
    _train(stream, 16.0, STEPS - 100)
    if rank == 3:
        return _train(stream.bad(16.0, last=2), 8.0, STEPS)
    return _train(stream, 16.0, STEPS)


def storms(rank: int) -> Stream:
    """Four ranks whose scale repeatedly grows into overflow, for the rest of the run."""
    stream = _train(_warm(rank, 4), 8192.0, STEPS // 2)
    while stream.next_step < STEPS:
        stream.bad(32768.0, last=3, inf=True).bad(16384.0, last=1, inf=True).good(8192.0, norm=5, full=True)
    return stream


def breaks(rank: int) -> Stream:
    """Two ranks that train on with a NaN in loss and gradients near the end."""
    stream = _train(_warm(rank, 2), 65536.0, STEPS - 40)
    while stream.next_step < STEPS:
        stream.bad(2.0**-10, last=5, loss=float("nan"))
    return stream


def vanishes(rank: int) -> Stream:
    """Gradients that underflow in float16, and a probe of Ammeter that failed."""
    stream = _warm(rank, 1).event("probe.failed", probe="user", error="RuntimeError: the storage was released")
    while stream.next_step < STEPS:
        stream.good(1.0, norm=1e-3, full=True, stats=stream.readings(zeros=0.6, subnormals=0.35))
    return stream


def trains(rank: int) -> Stream:
    """A healthy run."""
    return _train(_warm(rank, 1), 65536.0, STEPS)


RUNS: dict[Callable[[int], Stream], int] = {overflows: 8, storms: 4, breaks: 2, vanishes: 1, trains: 1}
"""Scenario of a run, and its ranks."""


@dataclass(frozen=True)
class RecordedStream:
    """A stream as its journal contains it."""

    run: str
    stream: str
    entries: Sequence[Entry]
    schema: Schema

    @property
    def end(self) -> int:
        return self.entries[-1].end

    @property
    def events(self) -> list[Event]:
        return [entry.frame for entry in self.entries if isinstance(entry.frame, Event)]

    @property
    def rows(self) -> columns.View:
        return columns.view(self.schema, [entry.frame for entry in self.entries if isinstance(entry.frame, Steps)])


def written(folder: Path, runs: Mapping[Callable[[int], Stream], int] = RUNS) -> list[RecordedStream]:
    """Returns the streams of the runs, written and read by the agent's journal."""
    dice, began = random.Random(SEED), time.time_ns() - OLDEST
    found = []
    for make, ranks in runs.items():
        run = str(uuid.UUID(int=dice.getrandbits(128), version=4))
        for rank in range(ranks):
            name = uuid.UUID(int=dice.getrandbits(128)).hex
            stream = make(rank).bye()
            writer = Journal(folder / run / name)
            for frame in stream.frames:
                _write(writer, frame, began, run=run, stream=name, rank=rank, project=PROJECT, name=make.__name__)
            writer.close()
            found.append(RecordedStream(run, name, list(journal.read(writer.folder)), stream.schema))
    return found


@dataclass
class Sender:
    """Sends a stream in a number of batches, cut at random.

    Repeats a batch without acknowledgement, and continues from the collector's offset. taken: acknowledgements that
    advanced the offset. last: the last answer. restless: also send later batches first, and different cuts. rest:
    function that waits.
    """

    recorded: RecordedStream
    transport: Collector
    batches: int
    restless: bool = True
    rest: Callable[[float], None] = time.sleep
    offset: int = 0
    taken: int = 0
    last: Answer | None = None

    def __post_init__(self) -> None:
        self._dice = random.Random(self.recorded.stream)
        inner = self._dice.sample(range(1, len(self.recorded.entries)), self.batches - 1)
        self._cuts = [self.recorded.entries[index].begin for index in sorted(inner)] + [self.recorded.end]

    def send_all(self) -> None:
        while self.offset < self.recorded.end:
            self.step()
        while self.restless and self._post(0, self.recorded.end).offset != self.recorded.end:
            pass  # a sender that lost its acknowledgements sends everything again

    def step(self) -> Answer:
        """Sends one batch."""
        ahead = [cut for cut in self._cuts if cut > self.offset][:3]
        begin, end = self.offset, ahead[0]
        luck = self._dice.random() if self.restless and len(ahead) == 3 else 1.0
        if luck < 0.02:
            begin, end = ahead[0], ahead[1]  # overtakes the batch before
        elif luck < 0.03:
            end = ahead[1]
        answer = self.last = self._post(begin, end)
        self._take(answer)
        return answer

    def _take(self, answer: Answer) -> None:
        if answer.status in (200, 409):
            assert answer.offset is not None
            assert answer.offset >= self.offset, f"{self.offset} was acknowledged, and now it is {answer.offset}"
            self.taken += answer.offset > self.offset
            self.offset = answer.offset
        else:
            assert answer.unavailable, answer
            self.rest(answer.retry_seconds or self._dice.uniform(0.005, 0.05))

    def _post(self, begin: int, end: int) -> Answer:
        entries = [entry for entry in self.recorded.entries if begin <= entry.begin < end]
        made = build_payload(entries, self.recorded.schema)
        batch = Batch(made.items, made.gaps, backlog=self.recorded.end - end)
        return self.transport.send(self.recorded.run, self.recorded.stream, begin, end, batch)


def collector_client(url: str, token: str | None = None) -> Collector:
    """Returns the agent's own connection to a collector, without log output."""
    return Collector(url, token, lambda *_: None, read_seconds=20.0)


def all_at_once(acts: Sequence[Callable[[], object]]) -> None:
    """Runs functions in threads. Raises the exception of any of them."""
    with ThreadPoolExecutor(len(acts)) as threads:
        for done in [threads.submit(act) for act in acts]:
            done.result()


def holds_what_was_sent(database: Connection, recorded: RecordedStream) -> None:
    """Checks that the database has every row exactly, events in order, and the counters."""
    rows = recorded.rows
    assert stored.bits(rows) == stored.rows(database, recorded.run)[recorded.stream]
    sent = [(number, event.name, event.step, event.time) for number, event in enumerate(recorded.events)]
    assert sent == [event[:4] for event in stored.events(database, recorded.run)[recorded.stream]]
    row = stored.streams(database, recorded.run)[recorded.stream]
    assert (recorded.end, len(rows), len(sent)) == (row["acknowledged"], row["rows"], row["events"])
    assert _of_the_sender(recorded) == {name: row["counters"][name] for name in _of_the_sender(recorded)}


def _of_the_sender(recorded: RecordedStream) -> dict[str, float]:
    """Returns the counters of the journal's writer."""
    rows = recorded.rows
    skipped = rows.scalar("skipped") > 0
    samples = rows.scalar("samples")
    return {
        "steps": len(rows),
        "applied": int(((rows.scalar("applied") > 0) & ~skipped).sum()),
        "skipped": int(skipped.sum()),
        "overflow_events": int((rows.scalar("found_inf") > 0).sum()),
        "nonfinite_loss_steps": int((columns.measured(rows.scalar("loss")) & ~np.isfinite(rows.scalar("loss"))).sum()),
        "backoffs": sum(event.name == "scaler.backoff" for event in recorded.events),
        "samples": float(samples[np.isfinite(samples)].sum()),
    }


def _warm(rank: int, world_size: int) -> Stream:
    """Returns the first steps of a rank; ranks differ in their noise."""
    stream = warm(40)
    stream.dice = np.random.default_rng(rank)
    hello = stream.frames[0]
    assert isinstance(hello, Hello)
    stream.frames[0] = msgspec.structs.replace(hello, world_size=world_size)
    return stream


def _train(stream: Stream, scale: float, until: int) -> Stream:
    while stream.next_step < until:
        stream.good(scale, norm=1 + 0.3 * float(stream.dice.random()), full=stream.next_step % 9 == 0, samples=32)
    return stream


def _write(writer: Journal, frame: frames.Frame, began: int, **said: object) -> None:
    if isinstance(frame, Hello):
        writer.hello(msgspec.structs.replace(frame, started=began + frame.started, **said))
    elif isinstance(frame, frames.Lost):
        writer.append(frame)
    else:
        writer.append(msgspec.structs.replace(frame, time=began + frame.time))
