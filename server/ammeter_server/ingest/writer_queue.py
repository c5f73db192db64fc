"""Checks batches, computes their changes and commits them, in writer threads.

SQLite has one writer, and the commit dominates the cost, so waiting batches share a transaction (group commit).
On PostgreSQL prepared batch has its own transaction and locks the row of one stream only.
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

from ammeter.wire import frames
from ammeter_server.context import AppContext
from ammeter_server.db import Connection, DatabaseError, StoreAwayError, StoreFullError
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.streams import StreamState
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.http.problems import Problem, of_store
from ammeter_server.ingest import validation
from ammeter_server.ingest.apply import StreamUpdate, check_schemas, decide, load_stream, write
from ammeter_server.ingest.registration import (
    IngestRequest,
    check_deleted,
    check_introduction,
    check_opening,
    check_owner,
    introduce,
    open_stream,
    place_stream,
)
from ammeter_server.ingest.stream_cache import CachedStream, StreamCache
from ammeter_server.process import self_metrics
from ammeter_server.runs.run_ids import is_reserved

POSTGRESQL_THREADS = 4
"""Concurrent transactions on PostgreSQL; SQLite has one writer."""

MAX_GROUP_BATCHES = 32
MAX_GROUP_BYTES = 4 * 2**20
"""Limits of one transaction, beyond its first batch: other writers wait until it ends."""

COMMIT_TIMEOUT_SECONDS = 20.0
"""After this the request is answered with 503. Shippers close the connection after 30 s."""

Answer = int | Exception
"""The committed offset, or the error because of which nothing was committed."""


class Intake:
    """The ingest queue of one collector process: submit() enqueues, writer threads call commit_group()."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._cache = StreamCache()
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._together = MAX_GROUP_BATCHES if context.store.is_sqlite else 1

    def start(self) -> None:
        for number in range(1 if self._context.store.is_sqlite else POSTGRESQL_THREADS):
            thread = threading.Thread(target=self._run, name=f"ammeter-intake-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Commits the waiting batches and ends the threads. Idempotent."""
        for _ in self._threads:
            self._waiting.put(None)
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
        self._waiting.put(waiting)
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_SECONDS):
                return await waiting.answer
        except TimeoutError as error:
            waited = f"{COMMIT_TIMEOUT_SECONDS:.0f} s"
            said = f"the database has not answered for {waited}; see to it: senders try again by themselves"
            raise of_store(StoreAwayError(said)) from error
        except (StoreFullError, StoreAwayError) as error:
            raise of_store(error) from error
        finally:
            waiting.request = None  # frees the body, and cancels a batch that has not begun

    @property
    def waiting(self) -> int:
        """The number of queued batches, without those that are being committed."""
        return self._waiting.qsize()

    def commit_group(self, requests: Sequence[IngestRequest]) -> list[Answer]:
        """Commits several batches in one transaction; a refused batch does not affect the others."""
        now = time.time_ns()
        batches = [self._prepare(request, now) for request in requests]
        try:
            results = self._commit(batches)
        except (StoreFullError, StoreAwayError) as wrong:
            return [wrong for _ in requests]
        except Exception as fault:  # noqa: BLE001 - retried alone, so that only the faulty batch fails
            return [fault] if len(requests) == 1 else [self.commit_group([request])[0] for request in requests]
        for result in results:
            self._record(result)
        if any(result.change is not None and result.change.awaited for result in results):
            self._context.judge_wakeup.set()
        return [result.answer for result in results]

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            group = [(item, request) for item in self._group(first) if (request := item.request) is not None]
            try:
                answers = self.commit_group([request for _, request in group]) if group else []
            except Exception as fault:  # noqa: BLE001 - every waiting request receives an answer
                answers = [fault for _ in group]
            _resolve([item for item, _ in group], answers)

    def _group(self, first: _Waiting) -> list[_Waiting]:
        """The first batch and the batches that are queued already, up to the group limits."""
        group, size = [first], 0
        while len(group) < self._together and size < MAX_GROUP_BYTES:
            try:
                more = self._waiting.get_nowait()
            except Empty:
                break
            if more is None:
                self._waiting.put(None)
                break
            group.append(more)
            size += len(more.request.body) if more.request else 0
        return group

    def _prepare(self, request: IngestRequest, now: int) -> _PreparedBatch:
        """Checks a batch and computes its changes from the cached stream, before the transaction begins."""
        try:
            _check_place(request)
            batch = validation.decoded(request.body, now)
            validation.check(
                batch,
                request.called,
                request.stream,
                request.offset,
                request.end,
                self._context.settings.max_unpacked_bytes,
            )
        except Exception as wrong:  # noqa: BLE001 - raised in the transaction of this batch
            return _PreparedBatch(request, now, frames.Batch(), wrong=wrong)
        known = self._cache.get(request.run, request.stream, request.project)
        if known is not None and known.state.run != request.run:
            request = replace(request, run=known.state.run, named=request.run)
        if known is None or known.state.acknowledged != request.offset or request.offset == request.end:
            return _PreparedBatch(request, now, batch, known)
        try:
            return _PreparedBatch(request, now, batch, known, decide(known, batch, request.end, now))
        except Exception:  # noqa: BLE001 - the cache may be stale; decided again from the row
            return _PreparedBatch(request, now, batch)

    def _commit(self, batches: Sequence[_PreparedBatch]) -> list[_WriteResult]:
        with self._context.store.writing() as connection:
            return [_write_one(connection, prepared, self._context.quota) for prepared in batches]

    def _record(self, result: _WriteResult) -> None:
        """Updates cache and metrics after a commit."""
        request = result.request
        if result.known is not None:
            self._cache.keep(result.known, request.called, request.project)
        elif result.change is not None or isinstance(result.answer, Exception):
            self._cache.forget(request.called, request.stream, request.project)
        if result.change is not None:
            self_metrics.ingest_values.inc(result.change.values)
            self_metrics.ingest_bytes.inc(len(result.request.body))
            for lost in result.change.losses:
                self_metrics.lose(lost.reason, lost.steps + lost.events)


@dataclass
class _Waiting:
    """A queued batch. request: None once its sender no longer waits."""

    request: IngestRequest | None
    answer: asyncio.Future[int]


@dataclass(frozen=True)
class _PreparedBatch:
    """A checked batch, its cached stream and the changes computed from that; or the error that refuses it."""

    request: IngestRequest
    now: int
    batch: frames.Batch
    known: CachedStream | None = None
    change: StreamUpdate | None = None
    wrong: Exception | None = None


@dataclass(frozen=True)
class _WriteResult:
    """The result of one batch, valid once its transaction is committed. known: the stream as it is then."""

    request: IngestRequest
    answer: Answer
    known: CachedStream | None = None
    change: StreamUpdate | None = None


def _write_one(connection: Connection, prepared: _PreparedBatch, quota: Quota) -> _WriteResult:
    request = prepared.request
    try:
        prepared, raw = _lock_stream(connection, prepared)
        request = prepared.request
        known, change = _decide(connection, prepared, raw, quota)  # refuses before anything is written
    except DatabaseError:  # the transaction is lost
        raise
    except Exception as wrong:  # noqa: BLE001 - the other batches of the transaction go on
        return _WriteResult(request, wrong)
    if known.state.acknowledged != request.offset:
        return _WriteResult(request, known.state.acknowledged)
    if change is None:
        return _WriteResult(request, request.offset, _heartbeat(connection, known, prepared))
    if known.state.schema is None:
        opened = _open_stream(connection, known, prepared)
        request = replace(request, run=opened.state.run)
        if opened.state.acknowledged != request.offset:  # another sender has opened it since the first select
            return _WriteResult(request, _offset_conflict(request, opened.state.acknowledged))
        known = opened
    return _WriteResult(request, request.end, write(connection, known, change, prepared.now), change)


def _lock_stream(connection: Connection, prepared: _PreparedBatch) -> tuple[_PreparedBatch, streams.Raw | None]:
    """Locks the row of the batch's stream. A cached stream that was deleted meanwhile is discarded."""
    if prepared.wrong is not None:
        raise prepared.wrong
    if prepared.known is not None:
        raw = streams.select_for_update(connection, prepared.request.run, prepared.request.stream)
        if raw is not None:
            return prepared, raw
    prepared = replace(
        prepared, request=place_stream(connection, prepared.request, prepared.batch), known=None, change=None
    )
    return prepared, streams.select_for_update(connection, prepared.request.run, prepared.request.stream)


def _decide(
    connection: Connection, prepared: _PreparedBatch, raw: streams.Raw | None, quota: Quota
) -> tuple[CachedStream, StreamUpdate | None]:
    """The current stream and the changes of the batch, None for no change. Raises Problem to refuse it."""
    request = prepared.request
    if raw is None:  # open_stream() detects a run id that another project has just result
        check_deleted(connection, request)
    else:
        check_owner(connection, request)
    same = prepared.known is not None and prepared.known.raw == raw
    known = (
        prepared.known if prepared.known is not None and same else _load_stream(connection, request, raw, prepared.now)
    )
    if known.state.acknowledged != request.offset:
        wrong = _offset_conflict(request, known.state.acknowledged)
        if isinstance(wrong, Exception):
            raise wrong
        return known, None
    if request.offset == request.end:
        return known, None
    validation.check_extent(prepared.batch, len(request.body), request.offset, request.end)
    if raw is None:
        check_opening(connection, request, prepared.batch, quota)
    elif known.state.schema is None:
        check_introduction(connection, request, prepared.batch, quota)
    change = (
        prepared.change
        if same and prepared.change is not None
        else decide(known, prepared.batch, request.end, prepared.now)
    )
    check_schemas(connection, known.state, change.schemas)
    return known, change


def _load_stream(connection: Connection, request: IngestRequest, raw: streams.Raw | None, now: int) -> CachedStream:
    return (
        load_stream(connection, raw)
        if raw
        else CachedStream(None, StreamState(request.run, request.stream, last_seen=now))
    )


def _heartbeat(connection: Connection, known: CachedStream, prepared: _PreparedBatch) -> CachedStream | None:
    """Stores that the shipper is alive, and its backlog."""
    if known.raw is None:
        return None
    state = known.state._replace(last_seen=prepared.now, alive=prepared.batch.alive, backlog=prepared.batch.backlog)
    raw = streams.update_progress(connection, known.state, known.raw, state)
    return CachedStream(raw, state, known.schema, known.decoded)


def _check_place(request: IngestRequest) -> None:
    try:
        well_formed = str(uuid.UUID(request.run)) == request.run and uuid.UUID(request.stream).hex == request.stream
    except ValueError:
        well_formed = False
    if not well_formed:
        said = f"run {request.run[:80]!r} and stream {request.stream[:80]!r}"
        raise Problem(422, f"{said}: use a lower-case UUID with dashes, and one without")
    if is_reserved(request.run):
        raise Problem(
            422, f"run {request.run}: such ids only the collector gives; use a UUID of the variant of RFC 9562"
        )
    if request.end < request.offset:
        raise Problem(422, f"offset {request.offset} is behind end {request.end}")


def _offset_conflict(request: IngestRequest, committed: int) -> Answer:
    """The answer to a batch that does not begin at the committed offset: that offset, or a 409 problem."""
    if request.end <= committed:
        return committed
    said = f"the batch holds {request.offset} to {request.end}; everything before {committed} is committed: go on there"
    return Problem(409, said, offset=committed)


def _open_stream(connection: Connection, known: CachedStream, prepared: _PreparedBatch) -> CachedStream:
    """Creates the missing rows of a stream and its run, and returns the stream."""
    request = prepared.request
    if known.raw is not None:
        introduce(connection, request, prepared.batch, prepared.now)
        return known
    request = open_stream(connection, request, prepared.batch, prepared.now)
    return _load_stream(
        connection, request, streams.select_for_update(connection, request.run, request.stream), prepared.now
    )


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
