"""Background thread: judges runs with new data, delivers the outbox, checks silent streams."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ammeter.wire import columns
from ammeter_server.context import AppContext
from ammeter_server.db import Connection, Store, StoreAwayError, StoreBrokenError, StoreFullError, StoreRefusingError
from ammeter_server.db.queries import runs, streams
from ammeter_server.db.queries.streams import Raw, StreamState
from ammeter_server.http.limits.run_quota import Quota
from ammeter_server.ingest.apply import Judgement, judge_tick, store_tick
from ammeter_server.judging.judge import Judge
from ammeter_server.notify.batching import NotificationBatch
from ammeter_server.notify.channel import Channel
from ammeter_server.notify.delivery import Outbox

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.5
"""Between two rounds without a wakeup: the delay until another collector's commit is judged."""

DELIVERY_INTERVAL_NS = 100_000_000
"""Between two deliveries while runs are being judged."""

SILENCE_NS = 15 * 10**9
"""A shipper sends something every 2 s; after this silence the verdicts on silence are evaluated."""

RETRY_NS = 30 * 10**9
"""Longest pause of a shipper between two attempts: MAX_BACKOFF_SECONDS of ammeter.shipper.answers."""

TICK_NS = 5 * 10**9
"""Between two evaluations of the verdicts on silence."""

STALL_NS = 60 * 10**9
"""A stream with a live shipper and no step for this long is evaluated as well."""


class JudgeWorker:
    """Judges and delivers from the start of the collector to its end; judge_wakeup starts a round at once."""

    def __init__(self, context: AppContext, channels: Mapping[str, Channel]) -> None:
        self.store = context.store
        self.judge_wakeup = context.judge_wakeup
        self.quota = context.quota
        self.judge = Judge(context.store, context.settings, list(channels.values()))
        self.outbox = Outbox(context.store, channels)
        self.gathering = NotificationBatch()
        self.clock = Clock()
        self._delivered = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ammeter-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for running deliveries. Idempotent."""
        self._stopped.set()
        self.judge_wakeup.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.outbox.close()

    def sweep(self, now: int) -> float:
        """Runs one round. A part that fails is logged and retried in the next round; the other parts run.

        Returns:
            Seconds until the next round.
        """
        _logged("judging", lambda: self.judge.judge_due(now, self._meanwhile))
        gathering = self.gathering.should_wait(time.time_ns())
        self._deliver(gathering)
        if self.quota.is_due(now):
            _logged("counting runs", lambda: count_runs(self.store, self.quota, now))
        if self.clock.is_due(now) and _logged("ticking", lambda: self._tick(now)):
            self.judge_wakeup.set()
        return DELIVERY_INTERVAL_NS / 10**9 if gathering else PAUSE_SECONDS

    def _tick(self, now: int) -> bool:
        return tick(self.store, now, self.clock.awake_since, self._meanwhile)

    def _meanwhile(self, told: bool = False) -> None:
        """Delivers at intervals while many runs are judged. told: whether the last run has notifications."""
        now = time.time_ns()
        gathering = self.gathering.should_wait(now, told=told, more=True)
        if now - self._delivered >= DELIVERY_INTERVAL_NS:
            self._deliver(gathering)

    def _deliver(self, gathering: bool) -> None:
        self._delivered = time.time_ns()
        _logged("delivering", lambda: self.outbox.deliver_due(self._delivered, gathering=gathering))

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.judge_wakeup.wait(self.sweep(time.time_ns()))
            self.judge_wakeup.clear()


class Clock:
    """Decides when to tick, and since when this process has been able to receive batches.

    After a start, a suspended machine or a long pause of this process the measured silence starts at zero: the process
    itself was silent.
    """

    def __init__(self) -> None:
        self.awake_since = 0
        self._last_look = 0
        self._last_tick = 0

    def is_due(self, now: int) -> bool:
        if now - self._last_look >= SILENCE_NS:
            self.awake_since = now
        self._last_look = now
        if now - self.awake_since < SILENCE_NS or now - self._last_tick < TICK_NS:
            return False
        self._last_tick = now
        return True


def count_runs(store: Store, quota: Quota, now: int) -> None:
    """Updates the quota with the number of runs of each project."""
    with store.reading() as connection:
        quota.count(runs.by_project(connection), now)


def tick(store: Store, now: int, awake_since: int, after_each: Callable[[], None] = lambda: None) -> bool:
    """Evaluates the verdicts for the passing of time: on streams that are silent, back, or without a step.

    Args:
        store: The database.
        now: In ns.
        awake_since: Silence before this is the collector's own.
        after_each: Called after every stream that was written.

    Returns:
        Whether any verdict has a new finding.
    """
    with store.reading() as connection:  # nearly always nothing changes, and no lock is needed
        silent = streams.silent_streams(connection, now - SILENCE_NS)
        back = streams.returned_streams(connection, now - SILENCE_NS, "run-lost")
        still = streams.stalled_streams(connection, now - STALL_NS, now - SILENCE_NS)
        asked = ((place, streams.select_unlocked(connection, *place)) for place in dict.fromkeys(silent + back + still))
        moved = [place for place, raw in asked if _ticked(connection, raw, now, awake_since)]
    found = 0
    for place in moved:
        found += _tick_one(store, place, now, awake_since)
        after_each()
    return found > 0


def _tick_one(store: Store, place: tuple[str, str], now: int, awake_since: int) -> bool:
    """Evaluates the verdicts again on the locked row, and stores the result."""
    with store.writing() as connection:
        ticked = _ticked(connection, streams.select_for_update(connection, *place), now, awake_since)
        return ticked is not None and store_tick(connection, *ticked, now)


def _ticked(
    connection: Connection, raw: Raw | None, now: int, awake_since: int
) -> tuple[StreamState, Judgement] | None:
    """The result of the verdicts for a stream that has not ended. None where nothing changes."""
    held = streams.parse_row(connection, raw) if raw is not None else None
    if held is None or held.bye_reason is not None:
        return None
    # a shipper that met a stopped collector may pause for RETRY_NS before it tries again
    heard = held.last_seen if held.last_seen >= awake_since else awake_since + RETRY_NS
    alive = held.alive if now - heard < SILENCE_NS else None
    judged = judge_tick(held, columns.Tick(now, alive, heard))
    return None if judged is None else (held, judged)


def _logged(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (StoreBrokenError, StoreRefusingError):  # the store logs this itself, once a minute
        return None
    except (StoreFullError, StoreAwayError) as wrong:
        log.warning("%s waits: %s", what, wrong)
        return None
    except Exception:  # the thread survives unexpected errors
        log.exception("%s failed; it is tried again", what)
        return None
