"""Evaluates the verdicts on time that passes: on streams that are silent, have returned, or stall.

Judges rows that a collector has postponed and not judged, because it died.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ammeter.wire import columns
from ammeter.wire.frames import Schema
from ammeter_server.db import Connection, Store, StoreAwayError, StoreFullError
from ammeter_server.db.queries import streams
from ammeter_server.db.queries.streams import Raw, StreamState
from ammeter_server.ingest.judgement import Judgement, judge_views
from ammeter_server.ingest.transaction import catch_up, put_findings
from ammeter_server.process import self_metrics

log = logging.getLogger(__name__)

SILENCE_NS = 15 * 10**9
"""A shipper sends something every 2 s; after this silence the verdicts on silence are evaluated."""

RETRY_NS = 30 * 10**9
"""Longest pause of a shipper between two attempts: MAX_BACKOFF_SECONDS of ammeter.shipper.answers."""

TICK_NS = 5 * 10**9
"""Between two evaluations of the verdicts on silence."""

STALL_NS = 60 * 10**9
"""A stream with a live shipper and no step for this long is evaluated as well."""


class Clock:
    """Decides when to tick, and since when this process has been able to receive batches.

    After a start, a suspended machine or a long pause of this process the measured silence starts at zero: the process
    itself was silent.
    """

    def __init__(self) -> None:
        self.awake_since = 0
        self._last_call = 0
        self._last_tick = 0

    def is_due(self, now: int) -> bool:
        if now - self._last_call >= SILENCE_NS:
            self.awake_since = now
        self._last_call = now
        if now - self.awake_since < SILENCE_NS or now - self._last_tick < TICK_NS:
            return False
        self._last_tick = now
        return True


def tick(store: Store, now: int, awake_since: int, after_stream: Callable[[], None] = lambda: None) -> bool:
    """Evaluates all streams that are silent, have returned, or stall.

    Args:
        store: The database.
        now: In ns.
        awake_since: Silence before this is the collector's own.
        after_stream: Called after every stream that was written.

    Returns:
        Whether any verdict has a new finding.
    """
    new_findings = _catch_up(store, now, after_stream)
    with store.reading() as connection:  # nearly always nothing changes, and no lock is needed
        silent = streams.silent_streams(connection, now - SILENCE_NS)
        returned = streams.returned_streams(connection, now - SILENCE_NS, "run-lost")
        stalled = streams.stalled_streams(connection, now - STALL_NS, now - SILENCE_NS)
        places = dict.fromkeys(silent + returned + stalled)
        rows = ((place, streams.select_unlocked(connection, *place)) for place in places)
        changed = [place for place, raw in rows if _evaluate(connection, raw, now, awake_since)]
    for place in changed:
        new_findings += _tick_one(store, place, now, awake_since)
        after_stream()
    return new_findings > 0


def _catch_up(store: Store, now: int, after_stream: Callable[[], None]) -> int:
    """Judges the postponed rows of streams whose collector has died. Returns the number of streams with findings."""
    with store.reading() as connection:
        left = streams.postponed_streams(connection, now - SILENCE_NS)
    new_findings = 0
    for run, stream in left:
        try:
            with store.writing() as connection:
                result = catch_up(connection, run, stream, now)
        except (StoreFullError, StoreAwayError):
            raise
        except Exception:
            log.exception("the postponed rows of run %s, stream %s, cannot be judged", run, stream)
            continue
        new_findings += result is not None and result.has_findings
        after_stream()
    return new_findings


def _tick_one(store: Store, place: tuple[str, str], now: int, awake_since: int) -> bool:
    """Evaluates the verdicts again on the locked row, and stores the result."""
    with store.writing() as connection:
        ticked = _evaluate(connection, streams.select_for_update(connection, *place), now, awake_since)
        return ticked is not None and _store(connection, *ticked, now)


def _evaluate(
    connection: Connection, raw: Raw | None, now: int, awake_since: int
) -> tuple[StreamState, Judgement] | None:
    """The result of the verdicts for a stream that has not ended. None where nothing changes.

    A stream whose rows wait for their verdicts is evaluated once they have been judged.
    """
    state = streams.parse_row(connection, raw) if raw is not None else None
    if state is None or state.bye_reason is not None or state.postponed_from is not None:
        return None
    # a shipper that met a stopped collector may pause for RETRY_NS before it tries again
    last_contact = state.last_seen if state.last_seen >= awake_since else awake_since + RETRY_NS
    alive = state.alive if now - last_contact < SILENCE_NS else None
    completed = (state.completed_step, state.completed_time or 0) if state.completed_step is not None else (-1, 0)
    view = columns.view(Schema(), (), tick=columns.Tick(now, alive, last_contact, False, *completed))
    judged = judge_views(state, [view])
    return None if judged.columns["states"] == state.states and not judged.findings else (state, judged)


def _store(connection: Connection, state: StreamState, judged: Judgement, now: int) -> bool:
    """Stores a result. Returns whether it has findings."""
    put_findings(connection, state.run, state.id, judged.findings, now)
    has_findings = bool(judged.findings)
    values = {name: judged.columns[name] for name in ("states", "faults")}
    streams.put(connection, state.run, state.id, values | {"version": state.version + has_findings})
    self_metrics.count_faults(judged.failed)
    return has_findings
