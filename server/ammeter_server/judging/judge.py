"""Turns the findings of a run's streams into incidents, notifications, the run's state and fleet totals.

A judge claims a run with a lease, so that one collector at a time judges it, reads the findings of its streams, and
writes every result in one transaction. Ingest wakes the thread of the judge; its rounds find runs whose wakeup was
missed, and deliver the outbox.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ammeter.verdicts.causality import explain, of_ranks
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.silence import of_tags
from ammeter_server.config.settings import Settings
from ammeter_server.context import AppContext
from ammeter_server.curves.run_histories import RunHistoryCache
from ammeter_server.db import Connection, Row, Store, StoreAwayError, StoreFullError
from ammeter_server.db.queries import judge as query
from ammeter_server.db.queries import runs
from ammeter_server.incidents.lifecycle import Cause, Incident, IncidentChange, merge_causes, reconcile_incidents
from ammeter_server.judging import cross_rank, fleet_totals, silent_streams
from ammeter_server.judging.run_state import FINAL_STATES, continued, restarting, run_end
from ammeter_server.notify.batching import NotificationBatch
from ammeter_server.notify.channel import Channel
from ammeter_server.notify.delivery import Outbox
from ammeter_server.notify.outbox_writer import OutboxWriter
from ammeter_server.process import activity_log
from ammeter_server.worker import Worker, attempt

log = logging.getLogger(__name__)

LEASE_NS = 30 * 10**9
AGEING_NS = 30 * 10**9
"""Between two judgements of a run without new data: expiry, late ranks, totals."""

RANKS_AGEING_NS = 5 * 10**9
"""The same for a run with several ranks: no stream alone shows that ranks disagree."""

RECENT_NS = 3600 * 10**9
"""Runs without data for longer are judged already; only the first round after a start includes them."""

SWEEP_NS = 5 * 10**9
"""Between two rounds that consider all runs with recent data: for those that another process made due, or whose judge
died or failed. With ten thousand such runs the query takes 50 ms."""

CONTACT_NS = 10 * 10**9
"""Other rounds consider runs with data this long before the last round: clocks of collectors differ a little."""

PAUSE_SECONDS = 0.5
"""Between two rounds without a wakeup: the delay until another collector's commit is judged."""

DELIVERY_INTERVAL_NS = 100_000_000
"""Between two deliveries while runs are being judged."""


class Judge:
    """Judges runs for one collector process. channels: receivers of notifications."""

    def __init__(self, store: Store, settings: Settings, channels: Sequence[Channel] = ()) -> None:
        self.store = store
        self.outbox_writer = OutboxWriter(tuple(channels), settings.links)
        self.name = uuid.uuid4().hex
        self.histories = RunHistoryCache()
        self.prices = settings.cost_per_hour
        self.last_round = time.time_ns()
        """Start of the last complete round, or the time at which this judge was created."""
        self._contact_since = 0
        self._swept = 0
        self._partly_read: set[str] = set()  # their ranks or baseline are evaluated further in the next round
        self._unfinished: set[str] = set()  # still claimed: the database was full or did not answer

    def judge_due(self, now: int, after_run: Callable[[bool], None] = lambda _: None) -> int:
        """Judges every run that is due.

        Args:
            now: In ns.
            after_run: Called after each run with whether it has notifications due now.

        Returns:
            The number of runs with notifications due now.
        """
        sweeps = not 0 <= now - self._swept < SWEEP_NS  # also after the clock was set back
        since = min(self._contact_since, now - RECENT_NS) if sweeps else self.last_round - CONTACT_NS
        with self.store.reading() as connection:
            due = query.due(connection, now - AGEING_NS, since, now - RANKS_AGEING_NS)
        count = 0
        for run in dict.fromkeys([*due, *self._partly_read]):
            notifies = self._judge_guarded(run, now)
            after_run(notifies)
            count += notifies
        if sweeps:
            self._swept, self._contact_since = now, now - RECENT_NS
        self.last_round = now
        return count

    def judge(self, run: str, now: int) -> bool:
        """Judges one run unless another judge has claimed it. Returns whether notifications are due now."""
        self._partly_read.discard(run)
        with self.store.writing(durable=False) as connection:  # after a power cut the run is due again
            own_claim = self.name if run in self._unfinished else None
            if not query.claim(connection, run, self.name, now, now + LEASE_NS, own_claim):
                return False
        evaluation = self._evaluate(run, now)  # reads many steps, so it runs outside the transaction
        with self.store.writing() as connection:
            row = query.run_of(connection, run)
            if row is None or row.claimed_by != self.name:
                return False
            judgement = self._settle(connection, row, evaluation, now)
        if evaluation.continues:
            self._partly_read.add(run)
        _log_judgement(row, judgement)
        return judgement.notifies

    def _evaluate(self, run: str, now: int) -> cross_rank.RunEvaluation:
        """Evaluates the run across its ranks and its baseline. On a fault the run is judged by its streams alone."""
        try:
            return cross_rank.evaluate_run(self.store, self.histories, run, now)
        except (StoreFullError, StoreAwayError):  # the database is at fault: the run is judged later
            raise
        except Exception:
            log.exception("the ranks or the baseline of run %s could not be compared", run)
            return cross_rank.RunEvaluation()

    def _judge_guarded(self, run: str, now: int) -> bool:
        try:
            notifies = self.judge(run, now)
            self._unfinished.discard(run)
            return notifies
        except (StoreFullError, StoreAwayError):  # the next round continues without waiting for its own lease
            self._unfinished.add(run)
            raise
        except Exception:  # other runs are judged; this one again when its lease has ended
            log.exception("run %s could not be judged", run)
            return False

    def _settle(
        self, connection: Connection, row: Row[Any], evaluation: cross_rank.RunEvaluation, now: int
    ) -> RunJudgement:
        """Writes all results of a judgement, in the transaction that releases the run."""
        streams = query.streams_of(connection, row.id)
        incidents = [to_incident(incident) for incident in query.incidents_of(connection, row.id)]
        reported = any(incident.verdict == "run-lost" and incident.is_open for incident in incidents)
        awaited = frozenset[str]() if reported else restarting(streams, row.environment, now)
        replaced = frozenset[str]() if reported else awaited | continued(streams)
        findings = query.findings_of(connection, row.id)
        findings = [finding for finding in findings if finding.verdict != "run-lost" or finding.stream not in replaced]
        causes = _causes(streams, findings, evaluation.findings, of_tags(row.tags))
        silent = {finding.stream for finding in findings if finding.verdict == "run-lost" and finding.active}
        state, ended = ("running", None) if awaited else run_end(streams, silent, row.world_size, now)
        changes = reconcile_incidents(row.id, state in FINAL_STATES, causes, incidents, now)
        notifies = write_changes(connection, self.outbox_writer, row, changes, now)
        fleet_totals.add_incidents(connection, row, incidents, changes)
        counted = fleet_totals.add_progress(connection, row, streams, self.prices)
        by_stream = [(finding.stream, msgspec.convert(finding.body, Finding)) for finding in findings]
        comparisons = evaluation.values.get("evaluation", row.evaluation)
        fleet_totals.add_outcomes(
            connection, row, streams, [*by_stream, *evaluation.findings], comparisons, counted, state, ended or now
        )
        if not row.judged_at:
            query.add_project(connection, row.project, now)
        version = sum(stream.version for stream in streams)
        values = {
            "state": state,
            "ended": ended,
            "fleet_progress": counted,
            "judged_version": version,
            "judged_at": now,
        }
        query.release(connection, row.id, values | evaluation.values)
        return RunJudgement(notifies, state, counted.get("outcome"), with_new_state(incidents, changes))


class JudgeWorker(Worker):
    """Judges and delivers from the start of the collector to its end; judge_wakeup starts a round at once."""

    def __init__(self, context: AppContext, channels: Mapping[str, Channel]) -> None:
        super().__init__("ammeter-judge", context.judge_wakeup)
        self.judge = Judge(context.store, context.settings, list(channels.values()))
        self.outbox = Outbox(context.store, channels)
        self._context = context
        self._batch = NotificationBatch()
        self._clock = silent_streams.Clock()
        self._delivered = 0

    def stop(self) -> None:
        """Ends the thread and waits for running deliveries. Idempotent."""
        super().stop()
        self.outbox.close()

    def run_round(self, now: int) -> float:
        """Judges, delivers, counts runs and checks silent streams. A failed part does not stop the others."""
        attempt("judging", lambda: self.judge.judge_due(now, self._after_run))
        gathering = self._batch.should_wait(time.time_ns())
        self._deliver(gathering)
        if self._context.quota.is_due(now):
            attempt("counting runs", lambda: self._count_runs(now))
        if self._clock.is_due(now) and attempt("ticking", lambda: self._tick(now)):
            self._wakeup.set()
        return DELIVERY_INTERVAL_NS / 10**9 if gathering else PAUSE_SECONDS

    def _count_runs(self, now: int) -> None:
        with self._context.store.reading() as connection:
            self._context.quota.count(runs.by_project(connection), now)

    def _tick(self, now: int) -> bool:
        return silent_streams.tick(self._context.store, now, self._clock.awake_since, self._after_run)

    def _after_run(self, notifies: bool = False) -> None:
        """Delivers at intervals while many runs are judged. notifies: whether the last run has notifications."""
        now = time.time_ns()
        gathering = self._batch.should_wait(now, new_alert=notifies, more=True)
        if now - self._delivered >= DELIVERY_INTERVAL_NS:
            self._deliver(gathering)

    def _deliver(self, gathering: bool) -> None:
        self._delivered = time.time_ns()
        attempt("delivering", lambda: self.outbox.deliver_due(self._delivered, gathering=gathering))


class RunJudgement(NamedTuple):
    """The result of a judgement. notifies: notifications are due now. moved: incidents whose state has changed."""

    notifies: bool
    state: str
    outcome: str | None
    moved: list[Incident]


def write_changes(
    connection: Connection, writer: OutboxWriter, run: Row[Any], changes: Sequence[IncidentChange], now: int
) -> bool:
    """Writes incidents and their notifications. Returns whether a notification is due now."""
    for change in changes:
        query.put_incident(connection, msgspec.structs.asdict(change.incident))
    return writer.enqueue(connection, run, changes, now)


def with_new_state(before: Sequence[Incident], changes: Sequence[IncidentChange]) -> list[Incident]:
    """Incidents that are new or have another state than before."""
    states = {incident.id: incident.state for incident in before}
    return [change.incident for change in changes if states.get(change.incident.id) != change.incident.state]


def log_incident(incident: Incident, project: str) -> None:
    """Writes the new state of an incident to the activity log."""
    action = "opened" if incident.state == "open" else incident.state
    values = {"run": incident.run, "project": project, "verdict": incident.verdict, "severity": incident.severity}
    reason = incident.closed_reason if action == "closed" else None
    activity_log.done(f"incident.{action}", incident=incident.id, **values, step=incident.first_step, reason=reason)


def to_incident(row: Row[Any]) -> Incident:
    return Incident(**row._asdict())


def _log_judgement(before: Row[Any], judgement: RunJudgement) -> None:
    """Logs the changes of a judgement after its commit."""
    if not before.judged_at:
        activity_log.done("run.opened", run=before.id, project=before.project, name=before.name)
    if judgement.state != before.state:
        outcome = judgement.outcome if judgement.state in FINAL_STATES else None
        activity_log.done(f"run.{judgement.state}", run=before.id, project=before.project, outcome=outcome)
    for incident in judgement.moved:
        log_incident(incident, before.project)


def _causes(
    streams: Sequence[Row[Any]],
    findings: Sequence[Row[Any]],
    of_run: Sequence[tuple[str, Finding]],
    silenced_verdicts: frozenset[str],
) -> list[Cause]:
    """Merges the findings of streams and of the run into causes, without the verdicts that the run silences."""
    ranks = {stream.id: stream.rank for stream in streams if stream.role == "rank" and stream.schema is not None}
    audible = [finding for finding in findings if finding.verdict not in silenced_verdicts]
    in_order = sorted(audible, key=lambda finding: ranks.get(finding.stream, 0))  # the lowest rank's finding is shown
    of_streams = [(finding.stream, msgspec.convert(finding.body, Finding)) for finding in in_order]
    of_run = [(stream, finding) for stream, finding in of_run if finding.verdict not in silenced_verdicts]
    return merge_causes(explain([*of_ranks(of_streams, ranks), *of_run]), ranks, continued(streams))
