"""Takes batches in: checks them, decides what they change, and commits. Threads of its own do nothing else.

SQLite has one writer, and a commit takes longer than all else: batches that wait for it together are committed
together. PostgreSQL has a transaction for each, so that each touches one place.
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
"""Transactions at the same time, where the database can have several."""

MAX_GROUP_BATCHES = 32
MAX_GROUP_BYTES = 4 * 2**20
"""Batches of one transaction, and their bytes, beyond the first: whoever else writes waits that long."""


COMMIT_TIMEOUT_SECONDS = 20.0
"""Seconds until who waits is told that the database does not answer: shippers hang up after 30."""

Answer = int | Exception
"""The offset that is committed, or why nothing was."""


class Intake:
    """For one collector process. take() is for whoever has a thread; put() hands over to those of start()."""

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
        """Takes what waits and ends the threads. Twice is fine."""
        for _ in self._threads:
            self._waiting.put(None)
        while self._threads:
            self._threads.pop().join()

    async def submit(self, request: IngestRequest) -> int:
        """Returns the offset that is committed once it is. Raises Problem, or what else went wrong."""
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
            waiting.request = None  # who has gone holds no memory, and what was not begun is not done any more

    @property
    def waiting(self) -> int:
        """Batches that were taken in and are not committed yet, but for those that are being committed."""
        return self._waiting.qsize()

    def commit_group(self, several: Sequence[IngestRequest]) -> list[Answer]:
        """Commits all of these together, each of which stands or falls by itself."""
        now = time.time_ns()
        batches = [self._prepare(request, now) for request in several]
        try:
            taken = self._commit(batches)
        except (StoreFullError, StoreAwayError) as wrong:
            return [wrong for _ in several]
        except Exception as fault:  # noqa: BLE001 - one of them, and not all who happened to wait with it
            return [fault] if len(several) == 1 else [self.commit_group([request])[0] for request in several]
        for each in taken:
            self._record(each)
        if any(each.change is not None and each.change.awaited for each in taken):
            self._context.judge_wakeup.set()
        return [each.answer for each in taken]

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken = [(each, request) for each in self._group(first) if (request := each.request) is not None]
            try:
                answers = self.commit_group([request for _, request in taken]) if taken else []
            except Exception as fault:  # noqa: BLE001 - nobody must wait for ever
                answers = [fault for _ in taken]
            _resolve([each for each, _ in taken], answers)

    def _group(self, first: _Waiting) -> list[_Waiting]:
        """Those that wait already, with the first of them."""
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
        """What the batch changes if its stream is as it was left, which is found out later."""
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
        except Exception as wrong:  # noqa: BLE001 - raised where the sender is answered
            return _PreparedBatch(request, now, frames.Batch(), wrong=wrong)
        known = self._cache.get(request.run, request.stream, request.project)
        if known is not None and known.held.run != request.run:
            request = replace(request, run=known.held.run, named=request.run)
        if known is None or known.held.acknowledged != request.offset or request.offset == request.end:
            return _PreparedBatch(request, now, batch, known)
        try:
            return _PreparedBatch(request, now, batch, known, decide(known, batch, request.end, now))
        except Exception:  # noqa: BLE001 - it is decided again from what is so: what is known may be of yesterday
            return _PreparedBatch(request, now, batch)

    def _commit(self, several: Sequence[_PreparedBatch]) -> list[_WriteResult]:
        with self._context.store.writing() as connection:
            return [_write_one(connection, each, self._context.quota) for each in several]

    def _record(self, taken: _WriteResult) -> None:
        """What has been committed is known from now on, and counted."""
        request = taken.request
        if taken.known is not None:
            self._cache.keep(taken.known, request.called, request.project)
        elif taken.change is not None or isinstance(taken.answer, Exception):
            self._cache.forget(request.called, request.stream, request.project)
        if taken.change is not None:
            self_metrics.ingest_values.inc(taken.change.values)
            self_metrics.ingest_bytes.inc(len(taken.request.body))
            for lost in taken.change.losses:
                self_metrics.lose(lost.reason, lost.steps + lost.events)


@dataclass
class _Waiting:
    """sent: None once nobody waits for the answer."""

    request: IngestRequest | None
    answer: asyncio.Future[int]


@dataclass(frozen=True)
class _PreparedBatch:
    """A batch, what is thought to be known of its stream, and what it changes then; or why it cannot be right."""

    request: IngestRequest
    now: int
    batch: frames.Batch
    known: CachedStream | None = None
    change: StreamUpdate | None = None
    wrong: Exception | None = None


@dataclass(frozen=True)
class _WriteResult:
    """What was written, unless the transaction fails. known: of the stream from now on."""

    request: IngestRequest
    answer: Answer
    known: CachedStream | None = None
    change: StreamUpdate | None = None


def _write_one(connection: Connection, each: _PreparedBatch, quota: Quota) -> _WriteResult:
    request = each.request
    try:
        each, raw = _lock_stream(connection, each)
        request = each.request
        known, change = _decide(connection, each, raw, quota)  # what is refused is so here, with nothing written yet
    except DatabaseError:  # nothing of this transaction will be
        raise
    except Exception as wrong:  # noqa: BLE001 - the others of the transaction are taken
        return _WriteResult(request, wrong)
    if known.held.acknowledged != request.offset:
        return _WriteResult(request, known.held.acknowledged)
    if change is None:
        return _WriteResult(request, request.offset, _heartbeat(connection, known, each))
    if known.held.schema is None:
        opened = _open_stream(connection, known, each)
        request = replace(request, run=opened.held.run)
        if opened.held.acknowledged != request.offset:  # another sender opened it between our two looks
            return _WriteResult(request, _offset_conflict(request, opened.held.acknowledged))
        known = opened
    return _WriteResult(request, request.end, write(connection, known, change, each.now), change)


def _lock_stream(connection: Connection, each: _PreparedBatch) -> tuple[_PreparedBatch, streams.Raw | None]:
    """The stream's row where it lies, held; what was known of a stream that was deleted meanwhile is left out."""
    if each.wrong is not None:
        raise each.wrong
    if each.known is not None:
        raw = streams.select_for_update(connection, each.request.run, each.request.stream)
        if raw is not None:
            return each, raw
    each = replace(each, request=place_stream(connection, each.request, each.batch), known=None, change=None)
    return each, streams.select_for_update(connection, each.request.run, each.request.stream)


def _decide(
    connection: Connection, each: _PreparedBatch, raw: streams.Raw | None, quota: Quota
) -> tuple[CachedStream, StreamUpdate | None]:
    """The stream as it is, and what the batch changes; None for what changes nothing. Raises what is wrong."""
    request = each.request
    if raw is None:  # another project may have taken the run's id a moment ago, which opening finds out
        check_deleted(connection, request)
    else:
        check_owner(connection, request)
    same = each.known is not None and each.known.raw == raw
    known = each.known if each.known is not None and same else _load_stream(connection, request, raw, each.now)
    if known.held.acknowledged != request.offset:
        wrong = _offset_conflict(request, known.held.acknowledged)
        if isinstance(wrong, Exception):
            raise wrong
        return known, None
    if request.offset == request.end:
        return known, None
    validation.check_extent(each.batch, len(request.body), request.offset, request.end)
    if raw is None:
        check_opening(connection, request, each.batch, quota)
    elif known.held.schema is None:
        check_introduction(connection, request, each.batch, quota)
    change = each.change if same and each.change is not None else decide(known, each.batch, request.end, each.now)
    check_schemas(connection, known.held, change.schemas)
    return known, change


def _load_stream(connection: Connection, request: IngestRequest, raw: streams.Raw | None, now: int) -> CachedStream:
    return (
        load_stream(connection, raw) if raw else CachedStream(None, StreamState(request.run, request.stream, heard=now))
    )


def _heartbeat(connection: Connection, known: CachedStream, each: _PreparedBatch) -> CachedStream | None:
    """Somebody is there, and how far behind."""
    if known.raw is None:
        return None
    held = known.held._replace(heard=each.now, alive=each.batch.alive, backlog=each.batch.backlog)
    raw = streams.update_progress(connection, known.held, known.raw, held)
    return CachedStream(raw, held, known.schema, known.decoded)


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
    """What to answer to a batch that does not begin where the stream ends."""
    if request.end <= committed:
        return committed
    said = f"the batch holds {request.offset} to {request.end}; everything before {committed} is committed: go on there"
    return Problem(409, said, offset=committed)


def _open_stream(connection: Connection, known: CachedStream, each: _PreparedBatch) -> CachedStream:
    """The stream with what was missing of it and of its run."""
    request = each.request
    if known.raw is not None:
        introduce(connection, request, each.batch, each.now)
        return known
    request = open_stream(connection, request, each.batch, each.now)
    return _load_stream(
        connection, request, streams.select_for_update(connection, request.run, request.stream), each.now
    )


def _resolve(group: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
    """Wakes those who wait, all at once."""
    if not group:
        return

    def tell() -> None:
        for each, answer in zip(group, answers, strict=True):
            if each.answer.done():  # who asked has gone
                continue
            if isinstance(answer, Exception):
                each.answer.set_exception(answer)
            else:
                each.answer.set_result(answer)

    with suppress(RuntimeError):  # the loop has ended, and everybody with it
        group[0].answer.get_loop().call_soon_threadsafe(tell)
