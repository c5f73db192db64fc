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
from ammeter_server.context import Collector
from ammeter_server.db import Connection, DatabaseError, StoreAwayError, StoreFullError
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.streams import Held
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.http.problems import Problem, of_store
from ammeter_server.ingest import validation
from ammeter_server.ingest.apply import Change, check_schemas, decide, known_of, write
from ammeter_server.ingest.registration import (
    Sent,
    check_deleted,
    check_introduction,
    check_opening,
    check_owner,
    introduce,
    open_stream,
    placed,
)
from ammeter_server.ingest.stream_cache import Kept, Known
from ammeter_server.process import self_metrics
from ammeter_server.runs.run_ids import is_reserved

AT_ONCE = 4
"""Transactions at the same time, where the database can have several."""

TOGETHER = 32
TOGETHER_BYTES = 4 * 2**20
"""Batches of one transaction, and their bytes, beyond the first: whoever else writes waits that long."""


PATIENCE = 20.0
"""Seconds until who waits is told that the database does not answer: shippers hang up after 30."""

Answer = int | Exception
"""The offset that is committed, or why nothing was."""


class Intake:
    """For one collector process. take() is for whoever has a thread; put() hands over to those of start()."""

    def __init__(self, here: Collector) -> None:
        self._here = here
        self._kept = Kept()
        self._waiting: SimpleQueue[_Waiting | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._together = TOGETHER if here.store.is_sqlite else 1

    def start(self) -> None:
        for number in range(1 if self._here.store.is_sqlite else AT_ONCE):
            thread = threading.Thread(target=self._run, name=f"ammeter-intake-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Takes what waits and ends the threads. Twice is fine."""
        for _ in self._threads:
            self._waiting.put(None)
        while self._threads:
            self._threads.pop().join()

    async def put(self, sent: Sent) -> int:
        """Returns the offset that is committed once it is. Raises Problem, or what else went wrong."""
        waiting = _Waiting(sent, asyncio.get_running_loop().create_future())
        self._waiting.put(waiting)
        try:
            async with asyncio.timeout(PATIENCE):
                return await waiting.answer
        except TimeoutError as error:
            said = f"the database has not answered for {PATIENCE:.0f} s; see to it: senders try again by themselves"
            raise of_store(StoreAwayError(said)) from error
        except (StoreFullError, StoreAwayError) as error:
            raise of_store(error) from error
        finally:
            waiting.sent = None  # who has gone holds no memory, and what was not begun is not done any more

    @property
    def waiting(self) -> int:
        """Batches that were taken in and are not committed yet, but for those that are being committed."""
        return self._waiting.qsize()

    def take(self, several: Sequence[Sent]) -> list[Answer]:
        """Commits all of these together, each of which stands or falls by itself."""
        now = time.time_ns()
        batches = [self._foreseen(sent, now) for sent in several]
        try:
            taken = self._commit(batches)
        except (StoreFullError, StoreAwayError) as wrong:
            return [wrong for _ in several]
        except Exception as fault:  # noqa: BLE001 - one of them, and not all who happened to wait with it
            return [fault] if len(several) == 1 else [self.take([sent])[0] for sent in several]
        for each in taken:
            self._note(each)
        if any(each.change is not None and each.change.awaited for each in taken):
            self._here.bell.set()
        return [each.answer for each in taken]

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            taken = [(each, sent) for each in self._group(first) if (sent := each.sent) is not None]
            try:
                answers = self.take([sent for _, sent in taken]) if taken else []
            except Exception as fault:  # noqa: BLE001 - nobody must wait for ever
                answers = [fault for _ in taken]
            _tell([each for each, _ in taken], answers)

    def _group(self, first: _Waiting) -> list[_Waiting]:
        """Those that wait already, with the first of them."""
        group, size = [first], 0
        while len(group) < self._together and size < TOGETHER_BYTES:
            try:
                more = self._waiting.get_nowait()
            except Empty:
                break
            if more is None:
                self._waiting.put(None)
                break
            group.append(more)
            size += len(more.sent.body) if more.sent else 0
        return group

    def _foreseen(self, sent: Sent, now: int) -> _Foreseen:
        """What the batch changes if its stream is as it was left, which is found out later."""
        try:
            _check_place(sent)
            batch = validation.decoded(sent.body, now)
            validation.check(
                batch, sent.called, sent.stream, sent.offset, sent.end, self._here.settings.max_unpacked_bytes
            )
        except Exception as wrong:  # noqa: BLE001 - raised where the sender is answered
            return _Foreseen(sent, now, frames.Batch(), wrong=wrong)
        known = self._kept.get(sent.run, sent.stream, sent.project)
        if known is not None and known.held.run != sent.run:
            sent = replace(sent, run=known.held.run, named=sent.run)
        if known is None or known.held.acknowledged != sent.offset or sent.offset == sent.end:
            return _Foreseen(sent, now, batch, known)
        try:
            return _Foreseen(sent, now, batch, known, decide(known, batch, sent.end, now))
        except Exception:  # noqa: BLE001 - it is decided again from what is so: what is known may be of yesterday
            return _Foreseen(sent, now, batch)

    def _commit(self, several: Sequence[_Foreseen]) -> list[_Taken]:
        with self._here.store.writing() as connection:
            return [_take(connection, each, self._here.quota) for each in several]

    def _note(self, taken: _Taken) -> None:
        """What has been committed is known from now on, and counted."""
        sent = taken.sent
        if taken.known is not None:
            self._kept.keep(taken.known, sent.called, sent.project)
        elif taken.change is not None or isinstance(taken.answer, Exception):
            self._kept.forget(sent.called, sent.stream, sent.project)
        if taken.change is not None:
            self_metrics.ingest_values.inc(taken.change.values)
            self_metrics.ingest_bytes.inc(len(taken.sent.body))
            for lost in taken.change.losses:
                self_metrics.lose(lost.reason, lost.steps + lost.events)


@dataclass
class _Waiting:
    """sent: None once nobody waits for the answer."""

    sent: Sent | None
    answer: asyncio.Future[int]


@dataclass(frozen=True)
class _Foreseen:
    """A batch, what is thought to be known of its stream, and what it changes then; or why it cannot be right."""

    sent: Sent
    now: int
    batch: frames.Batch
    known: Known | None = None
    change: Change | None = None
    wrong: Exception | None = None


@dataclass(frozen=True)
class _Taken:
    """What was written, unless the transaction fails. known: of the stream from now on."""

    sent: Sent
    answer: Answer
    known: Known | None = None
    change: Change | None = None


def _take(connection: Connection, each: _Foreseen, quota: Quota) -> _Taken:
    sent = each.sent
    try:
        each, raw = _found(connection, each)
        sent = each.sent
        known, change = _decided(connection, each, raw, quota)  # what is refused is so here, with nothing written yet
    except DatabaseError:  # nothing of this transaction will be
        raise
    except Exception as wrong:  # noqa: BLE001 - the others of the transaction are taken
        return _Taken(sent, wrong)
    if known.held.acknowledged != sent.offset:
        return _Taken(sent, known.held.acknowledged)
    if change is None:
        return _Taken(sent, sent.offset, _heartbeat(connection, known, each))
    if known.held.schema is None:
        opened = _opened(connection, known, each)
        sent = replace(sent, run=opened.held.run)
        if opened.held.acknowledged != sent.offset:  # another sender opened it between our two looks
            return _Taken(sent, _elsewhere(sent, opened.held.acknowledged))
        known = opened
    return _Taken(sent, sent.end, write(connection, known, change, each.now), change)


def _found(connection: Connection, each: _Foreseen) -> tuple[_Foreseen, streams.Raw | None]:
    """The stream's row where it lies, held; what was known of a stream that was deleted meanwhile is left out."""
    if each.wrong is not None:
        raise each.wrong
    if each.known is not None:
        raw = streams.look(connection, each.sent.run, each.sent.stream)
        if raw is not None:
            return each, raw
    each = replace(each, sent=placed(connection, each.sent, each.batch), known=None, change=None)
    return each, streams.look(connection, each.sent.run, each.sent.stream)


def _decided(
    connection: Connection, each: _Foreseen, raw: streams.Raw | None, quota: Quota
) -> tuple[Known, Change | None]:
    """The stream as it is, and what the batch changes; None for what changes nothing. Raises what is wrong."""
    sent = each.sent
    if raw is None:  # another project may have taken the run's id a moment ago, which opening finds out
        check_deleted(connection, sent)
    else:
        check_owner(connection, sent)
    same = each.known is not None and each.known.raw == raw
    known = each.known if each.known is not None and same else _looked_up(connection, sent, raw, each.now)
    if known.held.acknowledged != sent.offset:
        wrong = _elsewhere(sent, known.held.acknowledged)
        if isinstance(wrong, Exception):
            raise wrong
        return known, None
    if sent.offset == sent.end:
        return known, None
    validation.check_extent(each.batch, len(sent.body), sent.offset, sent.end)
    if raw is None:
        check_opening(connection, sent, each.batch, quota)
    elif known.held.schema is None:
        check_introduction(connection, sent, each.batch, quota)
    change = each.change if same and each.change is not None else decide(known, each.batch, sent.end, each.now)
    check_schemas(connection, known.held, change.schemas)
    return known, change


def _looked_up(connection: Connection, sent: Sent, raw: streams.Raw | None, now: int) -> Known:
    return known_of(connection, raw) if raw else Known(None, Held(sent.run, sent.stream, heard=now))


def _heartbeat(connection: Connection, known: Known, each: _Foreseen) -> Known | None:
    """Somebody is there, and how far behind."""
    if known.raw is None:
        return None
    held = known.held._replace(heard=each.now, alive=each.batch.alive, backlog=each.batch.backlog)
    raw = streams.move(connection, known.held, known.raw, held)
    return Known(raw, held, known.schema, known.decoded)


def _check_place(sent: Sent) -> None:
    try:
        well_formed = str(uuid.UUID(sent.run)) == sent.run and uuid.UUID(sent.stream).hex == sent.stream
    except ValueError:
        well_formed = False
    if not well_formed:
        said = f"run {sent.run[:80]!r} and stream {sent.stream[:80]!r}"
        raise Problem(422, f"{said}: use a lower-case UUID with dashes, and one without")
    if is_reserved(sent.run):
        raise Problem(422, f"run {sent.run}: such ids only the collector gives; use a UUID of the variant of RFC 9562")
    if sent.end < sent.offset:
        raise Problem(422, f"offset {sent.offset} is behind end {sent.end}")


def _elsewhere(sent: Sent, committed: int) -> Answer:
    """What to answer to a batch that does not begin where the stream ends."""
    if sent.end <= committed:
        return committed
    said = f"the batch holds {sent.offset} to {sent.end}; everything before {committed} is committed: go on there"
    return Problem(409, said, offset=committed)


def _opened(connection: Connection, known: Known, each: _Foreseen) -> Known:
    """The stream with what was missing of it and of its run."""
    sent = each.sent
    if known.raw is not None:
        introduce(connection, sent, each.batch, each.now)
        return known
    sent = open_stream(connection, sent, each.batch, each.now)
    return _looked_up(connection, sent, streams.look(connection, sent.run, sent.stream), each.now)


def _tell(group: Sequence[_Waiting], answers: Sequence[Answer]) -> None:
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
