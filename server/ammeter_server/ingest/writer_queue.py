"""Queues batches for the writer threads, which check them, compute their changes and commit them.

SQLite has one writer, and the commit dominates the cost, so waiting batches share a transaction (group commit).
On PostgreSQL each batch has its own transaction and locks the row of one stream only.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from cachetools import LRUCache

from ammeter.wire import frames
from ammeter_server.context import AppContext
from ammeter_server.db import StoreAwayError, StoreFullError
from ammeter_server.http.problems import Problem, of_store
from ammeter_server.ingest import stream_update, transaction, validation
from ammeter_server.ingest.registration import IngestRequest
from ammeter_server.ingest.stream_update import CachedStream
from ammeter_server.ingest.transaction import Answer, PreparedBatch, WriteResult
from ammeter_server.process import self_metrics
from ammeter_server.runs.run_ids import is_reserved

POSTGRESQL_THREADS = 4
"""Concurrent transactions on PostgreSQL; SQLite has one writer."""

MAX_GROUP_BATCHES = 32
MAX_GROUP_BYTES = 4 * 2**20
"""Limits of one transaction, beyond its first batch: other writers wait until it ends."""

COMMIT_TIMEOUT_SECONDS = 20.0
"""After this the request is answered with 503. Shippers close the connection after 30 s."""

MAX_CACHED_STREAMS = 4_096
MAX_CACHED_TENSORS = 73 * MAX_CACHED_STREAMS
"""Of all cached streams together: about 100 MB where no two streams share a schema."""


class Intake:
    """The ingest queue of one collector process: submit() enqueues, writer threads call commit_group()."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._cache = StreamCache()
        self._queue: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._max_group = MAX_GROUP_BATCHES if context.store.is_sqlite else 1

    def start(self) -> None:
        for number in range(1 if self._context.store.is_sqlite else POSTGRESQL_THREADS):
            thread = threading.Thread(target=self._run, name=f"ammeter-intake-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Commits the waiting batches and ends the threads. Idempotent."""
        for _ in self._threads:
            self._queue.put(None)
        while self._threads:
            self._threads.pop().join()

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
        while (first := self._queue.get()) is not None:
            group = [(item, request) for item in self._group(first) if (request := item.request) is not None]
            try:
                answers = self.commit_group([request for _, request in group]) if group else []
            except Exception as fault:  # noqa: BLE001 - every waiting request receives an answer
                answers = [fault for _ in group]
            _resolve([item for item, _ in group], answers)

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
        cached = self._cache.get(request.run, request.stream, request.project)
        if cached is not None and cached.state.run != request.run:
            request = replace(request, run=cached.state.run, named=request.run)
        if cached is None or cached.state.acknowledged != offset or offset == end:
            return PreparedBatch(request, now, batch, cached)
        try:
            return PreparedBatch(request, now, batch, cached, stream_update.decide(cached, batch, end, now))
        except Exception:  # noqa: BLE001 - the cache may be stale; decided again from the row
            return PreparedBatch(request, now, batch)

    def _commit(self, batches: Sequence[PreparedBatch]) -> list[WriteResult]:
        with self._context.store.writing() as connection:
            return [transaction.write(connection, prepared, self._context.quota) for prepared in batches]

    def _record(self, result: WriteResult) -> None:
        """Updates cache and metrics after a commit."""
        request = result.request
        if result.stream is not None:
            self._cache.put(result.stream, request.sender_run, request.project)
        elif result.change is not None or isinstance(result.answer, Exception):
            self._cache.remove(request.sender_run, request.stream, request.project)
        if result.change is not None:
            self_metrics.ingest_values.inc(result.change.values)
            self_metrics.ingest_bytes.inc(len(request.body))
            for lost in result.change.losses:
                self_metrics.count_lost(lost.reason, lost.steps + lost.events)


class StreamCache:
    """The most recently used streams of one process. Thread-safe.

    The row is selected for every batch all the same: a cached stream is valid while the row is byte for byte the same.
    Its key is the project of the sender's token, and the run and stream that the sender names.
    """

    def __init__(self) -> None:
        self._streams: LRUCache[tuple[str | None, str, str], CachedStream] = LRUCache(MAX_CACHED_TENSORS, _tensors)
        self._lock = threading.Lock()

    def get(self, run: str, stream: str, project: str | None = None) -> CachedStream | None:
        with self._lock:
            return self._streams.get((project, run, stream))

    def put(self, cached: CachedStream, run: str | None = None, project: str | None = None) -> None:
        """Stores a stream. run: the id that its sender uses, where the run has another id here."""
        with self._lock:
            self._streams[project, run or cached.state.run, cached.state.id] = cached

    def remove(self, run: str, stream: str, project: str | None = None) -> None:
        with self._lock:
            self._streams.pop((project, run, stream), None)


def _tensors(cached: CachedStream) -> int:
    """The size of a cached stream; the minimum limits the number of streams."""
    return max(len(cached.schema.tensors) if cached.schema else 0, MAX_CACHED_TENSORS // MAX_CACHED_STREAMS)


@dataclass
class _Waiting:
    """A queued batch. request: None once its sender no longer waits."""

    request: IngestRequest | None
    answer: asyncio.Future[int]


def _check_place(request: IngestRequest) -> None:
    try:
        well_formed = str(uuid.UUID(request.run)) == request.run and uuid.UUID(request.stream).hex == request.stream
    except ValueError:
        well_formed = False
    if not well_formed:
        detail = f"the run is {request.run[:80]!r} and the stream {request.stream[:80]!r}"
        raise Problem(422, f"{detail}; use a lower-case UUID with dashes for the run, one without for the stream")
    if is_reserved(request.run):
        raise Problem(422, f"the run is {request.run}, an id that only the collector assigns; use a random UUID")
    if request.end < request.offset:
        raise Problem(422, f"offset {request.offset} is after end {request.end}; use an end at or after the offset")


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
