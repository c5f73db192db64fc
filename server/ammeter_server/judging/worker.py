"""One thread that does what nobody asks for: judges what moved, delivers the outbox, looks after silent streams."""

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

PAUSE = 0.5
"""Seconds between looks when nobody rings: how late another collector's commit is judged at most."""

OFTEN = 100_000_000
"""ns between two looks at what is due to be delivered, while runs are judged or waited for."""

SILENCE = 15 * 10**9
"""How long a shipper that says something every 2 s may be silent before the verdicts are asked."""

TICK = 5 * 10**9
"""How often they are asked again."""

STILL = 60 * 10**9
"""How long a stream that is spoken for may be without a step before the verdicts are asked."""


class Sweeper:
    """Starts with the collector and stops with it. Rings of the collector's bell wake it at once."""

    def __init__(self, collector: AppContext, channels: Mapping[str, Channel]) -> None:
        self.store = collector.store
        self.judge_wakeup = collector.judge_wakeup
        self.quota = collector.quota
        self.judge = Judge(collector.store, collector.settings, list(channels.values()))
        self.outbox = Outbox(collector.store, channels)
        self.gathering = NotificationBatch()
        self.clock = Clock()
        self._delivered = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ammeter-sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread and waits for what is being delivered. Twice is fine."""
        self._stopped.set()
        self.judge_wakeup.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.outbox.close()

    def sweep(self, now: int) -> float:
        """One look at everything. A part that fails is logged and tried at the next look; the others go on.

        Returns in how many seconds the next one is due.
        """
        _guarded("judging", lambda: self.judge.judge_due(now, self._meanwhile))
        gathering = self.gathering.should_wait(time.time_ns())
        self._deliver(gathering)
        if self.quota.is_due(now):
            _guarded("counting runs", lambda: count(self.store, self.quota, now))
        if self.clock.is_due(now) and _guarded("ticking", lambda: self._tick(now)):
            self.judge_wakeup.set()
        return OFTEN / 10**9 if gathering else PAUSE

    def _tick(self, now: int) -> bool:
        return tick(self.store, now, self.clock.awake_since, self._meanwhile)

    def _meanwhile(self, told: bool = False) -> None:
        """Delivers now and then while many are looked at. told: whether somebody has to be told of the last one."""
        now = time.time_ns()
        gathering = self.gathering.should_wait(now, told=told, more=True)
        if now - self._delivered >= OFTEN:
            self._deliver(gathering)

    def _deliver(self, gathering: bool) -> None:
        self._delivered = time.time_ns()
        _guarded("delivering", lambda: self.outbox.deliver_due(self._delivered, gathering=gathering))

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.judge_wakeup.wait(self.sweep(time.time_ns()))
            self.judge_wakeup.clear()


class Clock:
    """When to tick, and since when this process has been able to hear anybody.

    After a start, a suspended machine or a long stop of this process, silence begins anew: it was ours.
    """

    def __init__(self) -> None:
        self.awake_since = 0
        self._last_look = 0
        self._last_tick = 0

    def is_due(self, now: int) -> bool:
        if now - self._last_look >= SILENCE:
            self.awake_since = now
        self._last_look = now
        if now - self.awake_since < SILENCE or now - self._last_tick < TICK:
            return False
        self._last_tick = now
        return True


def count(store: Store, quota: Quota, now: int) -> None:
    """Tells the quota how many runs there are."""
    with store.reading() as connection:
        quota.count(runs.by_project(connection), now)


def tick(store: Store, now: int, awake_since: int, after_each: Callable[[], None] = lambda: None) -> bool:
    """Lets the verdicts look at the clock for streams that fell silent, that are back, or that make no step.

    Returns whether any of them concluded something new. after_each: is told of each that may have.
    """
    with store.reading() as connection:  # nearly always nothing follows, which takes no lock
        silent = streams.silent_streams(connection, now - SILENCE)
        back = streams.returned_streams(connection, now - SILENCE, "run-lost")
        still = streams.stalled_streams(connection, now - STILL, now - SILENCE)
        asked = ((place, streams.select_unlocked(connection, *place)) for place in dict.fromkeys(silent + back + still))
        moved = [place for place, raw in asked if _ticked(connection, raw, now, awake_since)]
    found = 0
    for place in moved:
        found += _tick_one(store, place, now, awake_since)
        after_each()
    return found > 0


def _tick_one(store: Store, place: tuple[str, str], now: int, awake_since: int) -> bool:
    """Asks them again, of the row as it is held."""
    with store.writing() as connection:
        ticked = _ticked(connection, streams.select_for_update(connection, *place), now, awake_since)
        return ticked is not None and store_tick(connection, *ticked, now)


def _ticked(
    connection: Connection, raw: Raw | None, now: int, awake_since: int
) -> tuple[StreamState, Judgement] | None:
    """What the verdicts make of the clock for a stream that may go on. None where that changes nothing."""
    held = streams.parse_row(connection, raw) if raw is not None else None
    if held is None or held.bye_reason is not None:
        return None
    heard = max(held.heard, awake_since)
    alive = held.alive if now - heard < SILENCE else None
    judged = judge_tick(held, columns.Tick(now, alive, heard))
    return None if judged is None else (held, judged)


def _guarded(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except (StoreBrokenError, StoreRefusingError):  # the store itself says so in the log, once a minute
        return None
    except (StoreFullError, StoreAwayError) as wrong:
        log.warning("%s waits: %s", what, wrong)
        return None
    except Exception:  # the sweeper outlives what nobody thought of
        log.exception("%s failed; it is tried again", what)
        return None
