"""Queues batches for the writer threads, which check them, compute their changes and commit them.

SQLite has one writer, and the commit dominates the cost, so waiting batches share a transaction (group commit).
On PostgreSQL each batch has its own transaction and locks the row of one stream only.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from queue import Empty, SimpleQueue

from ammeter.wire import frames
from ammeter_server.context import AppContext
from ammeter_server.db import StoreAwayError, StoreFullError
from ammeter_server.http.problems import Problem, of_store
from ammeter_server.ingest import stream_update, transaction, validation
from ammeter_server.ingest.postponement import Postponement
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_cache import MAX_CACHED_STREAMS, StreamCache, StreamKey
from ammeter_server.ingest.transaction import Answer, PreparedBatch, WriteResult
from ammeter_server.process import self_metrics
from ammeter_server.runs.run_ids import is_reserved

log = logging.getLogger(__name__)

POSTGRESQL_THREADS = 4
"""Concurrent transactions on PostgreSQL; SQLite has one writer."""

MAX_GROUP_BATCHES = 32
MAX_GROUP_BYTES = 4 * 2**20
"""Limits of one transaction, beyond its first batch: other writers wait until it ends."""

CATCH_UP_SECONDS = 0.25
"""Between two checks for postponed rows that have waited too long."""

RUN_CHARS, STREAM_CHARS = 36, 32
"""Characters of a UUID with dashes, and of one without."""

COMMIT_TIMEOUT_SECONDS = 20.0
"""After this the request is answered with 503. Shippers close the connection after 30 s."""


class Intake:
    """The ingest queue of one collector process: submit() enqueues, writer threads call commit_group()."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._cache = StreamCache()
        self.postponement = Postponement()
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._max_group = MAX_GROUP_BATCHES if context.store.is_sqlite else 1

    def start(self) -> None:
        for number in range(1 if self._context.store.is_sqlite else POSTGRESQL_THREADS):
            thread = threading.Thread(target=self._run, name=f"ammeter-intake-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Commits the waiting batches, judges the postponed rows and ends the threads. Idempotent."""
        for _ in self._threads:
            self._queue.put(None)
        while self._threads:
            self._threads.pop().join()
        self._catch_up(at_once=True)

    async def submit(self, request: IngestRequest) -> int:
        """Enqueues one batch and waits until it is committed.

        Returns:
            The committed offset.

        Raises:
            Problem: The batch is refused, or the database does not answer or is full.
        """
        waiting = _Waiting(request, asyncio.get_running_loop().create_future())
        self._queue.put(waiting)
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_SECONDS):
                return await waiting.answer
        except TimeoutError as error:
            detail = f"the database has not answered for {COMMIT_TIMEOUT_SECONDS:.0f} s; check it: senders retry"
            raise of_store(StoreAwayError(detail)) from error
        except (StoreFullError, StoreAwayError) as error:
            raise of_store(error) from error
        finally:
            waiting.request = None  # frees the body, and cancels a batch that has not begun

    @property
    def waiting(self) -> int:
        """The number of queued batches, without those that are being committed."""
        return self._queue.qsize()

    @property
    def verdict_delay(self) -> float:
        """How long new rows wait at most for their verdicts, in seconds; 0 while the writer threads have time."""
        return self.postponement.delay / 1e9

    def commit_group(self, requests: Sequence[IngestRequest]) -> list[Answer]:
        """Commits several batches in one transaction; a refused batch does not affect the others."""
        now = time.time_ns()
        batches = [self._prepare(request, now) for request in requests]
        try:
            results = self._commit(batches)
        except (StoreFullError, StoreAwayError) as error:
            return [error for _ in requests]
        except Exception as fault:  # noqa: BLE001 - retried alone, so that only the faulty batch fails
            return [fault] if len(requests) == 1 else [self.commit_group([request])[0] for request in requests]
        for result in results:
            self._record(result)
        if any(result.change is not None and result.change.wakes_judge for result in results):
            self._context.judge_wakeup.set()
        return [result.answer for result in results]

    def _run(self) -> None:
        caught_up = before = time.monotonic()
        while True:
            try:
                first = self._queue.get(timeout=CATCH_UP_SECONDS)
            except Empty:
                group = []
            else:
                if first is None:
                    return
                group = [(item, request) for item in self._group(first) if (request := item.request) is not None]
            begin = time.monotonic()
            self.postponement.observe(begin - before, busy=False)
            if group:
                self._answer(group)
            if begin - caught_up >= CATCH_UP_SECONDS:
                caught_up = begin
                self._catch_up()
            before = time.monotonic()
            self.postponement.observe(before - begin, busy=True)

    def _answer(self, group: Sequence[tuple[_Waiting, IngestRequest]]) -> None:
        """Commits a group and answers its senders."""
        try:
            answers = self.commit_group([request for _, request in group])
        except Exception as fault:  # noqa: BLE001 - every waiting request receives an answer
            answers = [fault for _ in group]
        _resolve([item for item, _ in group], answers)

    def _catch_up(self, at_once: bool = False) -> None:
        """Judges postponed rows that no further batch of their stream has reached in time.

        Ends when the database does not answer, or when batches wait, unless it has to be done at once.
        """
        while overdue := self.postponement.take_overdue(self._max_group, at_once):
            if not self._catch_up_group(overdue) or (self.waiting and not at_once):
                return

    def _catch_up_group(self, overdue: Mapping[StreamKey, str]) -> bool:
        """Judges the postponed rows of some streams in one transaction. Returns whether the database has answered."""
        now, cached = time.time_ns(), {key: self._cache.get(key) for key in overdue}
        try:
            with self._context.store.writing() as connection:
                results = {
                    key: transaction.catch_up(connection, run, key.stream, now, cached[key])
                    for key, run in overdue.items()
                }
        except Exception as fault:  # noqa: BLE001 - the next request of such a stream finds its rows again
            is_away = isinstance(fault, StoreFullError | StoreAwayError)
            if len(overdue) > 1 and not is_away:
                return all(self._catch_up_group({key: run}) for key, run in overdue.items())
            log.warning("postponed rows of %d streams are not judged yet: %s", len(overdue), fault)
            for key in overdue:
                self._cache.remove(key)
            return not is_away
        for key, result in results.items():
            if result is None:
                self._cache.remove(key)
            else:
                self._cache.put(key, result.stream)
        if any(result is not None and result.has_findings for result in results.values()):
            self._context.judge_wakeup.set()
        return True

    def _group(self, first: _Waiting) -> list[_Waiting]:
        """The first batch and the batches that are queued already, up to the group limits."""
        group, size = [first], 0
        while len(group) < self._max_group and size < MAX_GROUP_BYTES:
            try:
                more = self._queue.get_nowait()
            except Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            group.append(more)
            size += len(more.request.body) if more.request else 0
        return group

    def _prepare(self, request: IngestRequest, now: int) -> PreparedBatch:
        """Checks a batch and computes its changes from the cached stream, before the transaction begins."""
        offset, end, limit = request.offset, request.end, self._context.settings.max_unpacked_bytes
        try:
            _check_place(request)
            batch = validation.decoded(request.body, now)
            validation.check(batch, request.sender_run, request.stream, offset, end, limit)
        except Exception as error:  # noqa: BLE001 - raised in the transaction of this batch
            return PreparedBatch(request, now, frames.Batch(), error=error)
        key = StreamKey.of(request)
        cached = self._cache.get(key)
        if cached is not None and cached.state.run != request.run:
            request = replace(request, run=cached.state.run, named=request.run)
        if cached is None or cached.state.acknowledged != offset or offset == end:
            return PreparedBatch(request, now, batch, cached)
        try:
            delay = self.postponement.delay_of(key)
            return PreparedBatch(request, now, batch, cached, stream_update.decide(cached, batch, end, now, delay))
        except Exception:  # noqa: BLE001 - the cache may be stale; decided again from the row
            return PreparedBatch(request, now, batch)

    def _commit(self, batches: Sequence[PreparedBatch]) -> list[WriteResult]:
        with self._context.store.writing() as connection:
            return [transaction.write(connection, prepared, self._context.quota) for prepared in batches]

    def _record(self, result: WriteResult) -> None:
        """Updates cache and metrics after a commit."""
        key = StreamKey.of(result.request)
        if result.stream is not None:
            self._cache.put(key, result.stream)
            self.postponement.note(key, result.stream)
        elif result.change is not None or isinstance(result.answer, Exception):
            self._cache.remove(key)
        if result.stream is None and result.change is not None:  # a hello or bye, with which all rows are judged
            self.postponement.forget(key)
        if result.change is not None:
            self_metrics.ingest_values.inc(result.change.values)
            self_metrics.ingest_bytes.inc(len(result.request.body))
            for lost in result.change.losses:
                self_metrics.count_lost(lost.reason, lost.steps + lost.events)


@dataclass
class _Waiting:
    """A queued batch. request: None once its sender no longer waits."""

    request: IngestRequest | None
    answer: asyncio.Future[int]


def _check_place(request: IngestRequest) -> None:
    if len(request.run) != RUN_CHARS or len(request.stream) != STREAM_CHARS:
        raise _malformed(request.run, request.stream)
    _check_ids(request.run, request.stream)
    if request.end < request.offset:
        raise Problem(422, f"offset {request.offset} is after end {request.end}; use an end at or after the offset")


@lru_cache(MAX_CACHED_STREAMS)
def _check_ids(run: str, stream: str) -> None:
    """Raises a 422 problem. Parsing UUIDs takes a twentieth of what a small batch costs, so it is done once."""
    try:
        well_formed = str(uuid.UUID(run)) == run and uuid.UUID(stream).hex == stream
    except ValueError:
        well_formed = False
    if not well_formed:
        raise _malformed(run, stream)
    if is_reserved(run):
        raise Problem(422, f"the run is {run}, an id that only the collector assigns; use a random UUID")


def _malformed(run: str, stream: str) -> Problem:
    detail = f"the run is {run[:80]!r} and the stream {stream[:80]!r}"
    return Problem(422, f"{detail}; use a lower-case UUID with dashes for the run, one without for the stream")


def _resolve(group: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    """Passes the answers to the waiting requests, in one call of their event loop."""
    if not group:
        return

    def resolve() -> None:
        for waiting, answer in zip(group, answers, strict=True):
            if waiting.answer.done():  # the request was cancelled
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

    with suppress(RuntimeError):  # the event loop has ended, and its requests with it
        group[0].answer.get_loop().call_soon_threadsafe(resolve)
