"""Turns the findings of a run's streams into incidents, notifications, the run's state and fleet totals.

A judge claims a run with a lease, so that one collector at a time judges it, reads the findings of its streams, and
writes every result in one transaction. Ingest wakes the judge; the worker's rounds find runs whose wakeup was missed.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ammeter.counters import run as run_counters
from ammeter.verdicts.causality import explain, of_ranks
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.silence import of_tags
from ammeter_server.config.prices import Prices
from ammeter_server.config.settings import Settings
from ammeter_server.curves.run_histories import RunHistoryCache
from ammeter_server.db import Connection, Row, Store, StoreAwayError, StoreFullError
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit
from ammeter_server.db.queries import judge as judgements
from ammeter_server.incidents.lifecycle import (
    Cause,
    Incident,
    IncidentChange,
    acknowledged,
    closed_by_hand,
    merge_causes,
    reconcile_incidents,
    silenced,
)
from ammeter_server.judging import cross_rank
from ammeter_server.notify.channel import Channel
from ammeter_server.notify.outbox_writer import OutboxWriter
from ammeter_server.process import activity_log
from ammeter_server.runs import cost, outcomes

log = logging.getLogger(__name__)

LEASE_NS = 30 * 10**9
AGEING_NS = 30 * 10**9
"""Between two judgements of a run without new data: expiry, late ranks, totals."""

RANKS_AGEING_NS = 5 * 10**9
"""The same for a run with several ranks: no stream alone shows that ranks disagree."""

RECENT_NS = 3600 * 10**9
"""Runs without data for longer are judged already; only the first round after a start includes them."""

LATE_RANKS_NS = 30 * 10**9
"""A run whose other ranks have ended waits this long for ranks that never sent anything."""

RESTART_NS = 120 * 10**9
"""The time that a launcher may take to restart a process that died, until it has loaded torch and the model and calls
watch(). No notification is sent before."""

MAX_RESTART_DIGITS = 6
"""A number of restarts with more digits is ignored."""

MICRODOLLARS_PER_DOLLAR = 10**6
"""Totals are integers, so costs are counted in millionths of a dollar."""

HAS_ENDED = ("ended", "lost")

Decide = Callable[[Connection, Row[Any], Incident], IncidentChange]
"""Computes the change that a manual action makes to an incident of a run."""


class Judge:
    """Judges runs for one collector process. channels: receivers of notifications."""

    def __init__(self, store: Store, settings: Settings, channels: Sequence[Channel] = ()) -> None:
        self.store = store
        self.outbox_writer = OutboxWriter(tuple(channels), settings.links)
        self.name = uuid.uuid4().hex
        self.courses = RunHistoryCache()
        self.prices = settings.cost_per_hour
        self.looked = time.time_ns()
        """Start of the last complete round, or the time at which this judge was created."""
        self._heard_since = 0
        self._left: set[str] = set()  # runs that are still claimed: the database was full or did not answer

    def judge_due(self, now: int, after_each: Callable[[bool], None] = lambda _: None) -> int:
        """Judges every run that is due.

        Args:
            now: In ns.
            after_each: Called after each run with whether it has notifications due now.

        Returns:
            The number of runs with notifications due now.
        """
        with self.store.reading() as connection:
            due = judgements.due(connection, now - AGEING_NS, self._heard_since, now - RANKS_AGEING_NS)
        told = 0
        for run in due:
            tell = self._judge_guarded(run, now)
            after_each(tell)
            told += tell
        self._heard_since = now - RECENT_NS
        self.looked = now
        return told

    def judge(self, run: str, now: int) -> bool:
        """Judges one run unless another judge has claimed it. Returns whether notifications are due now."""
        with self.store.writing(durable=False) as connection:  # after a power cut the run is due again
            mine = self.name if run in self._left else None
            if not judgements.claim(connection, run, self.name, now, now + LEASE_NS, mine):
                return False
        seen = self._evaluate(run, now)  # reads many steps, so it runs outside the transaction
        with self.store.writing() as connection:
            row = judgements.run_of(connection, run)
            if row is None or row.claimed_by != self.name:
                return False
            settled = self._settle(connection, row, seen, now)
        _record(row, settled)
        return settled.tell

    def _evaluate(self, run: str, now: int) -> cross_rank.RunEvaluation:
        """Evaluates the run across its ranks and its baseline. On a fault the run is judged by its streams alone."""
        try:
            return cross_rank.evaluate_run(self.store, self.courses, run, now)
        except (StoreFullError, StoreAwayError):  # the database is at fault: the run is judged later
            raise
        except Exception:
            log.exception("the ranks or the baseline of run %s could not be compared", run)
            return cross_rank.RunEvaluation()

    def _judge_guarded(self, run: str, now: int) -> bool:
        try:
            told = self.judge(run, now)
            self._left.discard(run)
            return told
        except (StoreFullError, StoreAwayError):  # the next round continues without waiting for its own lease
            self._left.add(run)
            raise
        except Exception:  # other runs are judged; this one again when its lease has ended
            log.exception("run %s could not be judged", run)
            return False

    def acknowledge(self, incident: str, now: int, by: str = "somebody") -> Incident | None:
        """Acknowledges an incident for a person. None for an unknown incident."""
        return self._apply_manual_action(
            incident, lambda _, __, found: IncidentChange(acknowledged(found, now)), now, by
        )

    def silence(self, incident: str, until: int, now: int, by: str = "somebody") -> Incident | None:
        """Silences an incident for a person until a time. None for an unknown incident."""

        def quiet(connection: Connection, run: Row[Any], found: Incident) -> IncidentChange:
            change = IncidentChange(silenced(found, until))
            if found.is_open:
                self.outbox_writer.silence(connection, run, change.incident, by, now)
                audit.add(connection, now, by, "incident.silenced", incident, f"until {instant(until)}")
            return change

        return self._apply_manual_action(incident, quiet, now, by)

    def close(self, incident: str, now: int, by: str = "somebody") -> Incident | None:
        """Closes an incident for a person. None for an unknown incident."""
        return self._apply_manual_action(incident, lambda _, __, found: closed_by_hand(found, now), now, by)

    def _settle(self, connection: Connection, row: Row[Any], seen: cross_rank.RunEvaluation, now: int) -> RunJudgement:
        """Writes all results of a judgement, in the transaction that releases the run."""
        streams = judgements.streams_of(connection, row.id)
        incidents = [_incident(incident) for incident in judgements.incidents_of(connection, row.id)]
        told = any(incident.verdict == "run-lost" and incident.is_open for incident in incidents)
        awaited = frozenset[str]() if told else restarting(streams, row.environment, now)
        quiet = frozenset[str]() if told else awaited | _continued(streams)
        findings = judgements.findings_of(connection, row.id)
        findings = [finding for finding in findings if finding.verdict != "run-lost" or finding.stream not in quiet]
        quiet_verdicts = of_tags(row.tags)
        heard = [finding for finding in findings if finding.verdict not in quiet_verdicts]
        causes = _causes(
            streams, heard, [finding for finding in seen.findings if finding[1].verdict not in quiet_verdicts]
        )
        silent = {finding.stream for finding in findings if finding.verdict == "run-lost" and finding.active}
        state, ended = ("running", None) if awaited else run_end(streams, silent, row.world_size, now)
        changes = reconcile_incidents(row.id, state in HAS_ENDED, causes, incidents, now)
        tell = self._write(connection, row, changes, now)
        _count_incidents(connection, row, incidents, changes)
        folded = _add_to_fleet_totals(connection, row, streams, self.prices)
        held = [(finding.stream, msgspec.convert(finding.body, Finding)) for finding in findings]
        whole_of = seen.values.get("evaluation", row.evaluation)
        _add_outcomes(connection, row, streams, [*held, *seen.findings], whole_of, folded, state, ended or now)
        if not row.judged_at:
            judgements.add_project(connection, row.project, now)
        version = sum(stream.version for stream in streams)
        values = {"state": state, "ended": ended, "fleet_progress": folded, "judged_version": version, "judged_at": now}
        judgements.release(connection, row.id, values | seen.values)
        return RunJudgement(tell, state, folded.get("outcome"), _with_new_state(incidents, changes))

    def _write(self, connection: Connection, run: Row[Any], changes: Sequence[IncidentChange], now: int) -> bool:
        for change in changes:
            judgements.put_incident(connection, msgspec.structs.asdict(change.incident))
        return self.outbox_writer.enqueue(connection, run, changes, now)

    def _apply_manual_action(self, incident_id: str, decide: Decide, now: int, by: str) -> Incident | None:
        with self.store.writing() as connection:
            run = judgements.run_of(connection, incident_id.partition(".")[0])
            row = run and judgements.incident(connection, run.id, incident_id)
            if run is None or row is None:
                return None
            before = _incident(row)
            change = decide(connection, run, before)
            self._write(connection, run, [change], now)
            if change.incident.state != before.state:
                audit.add(connection, now, by, f"incident.{change.incident.state}", incident_id, run.project)
            judgements.make_due(connection, run.id)
        for incident in _with_new_state([before], [change]):
            _record_incident(incident, run.project)
        return change.incident


class RunJudgement(NamedTuple):
    """The result of a judgement. tell: notifications are due now. moved: incidents whose state has changed."""

    tell: bool
    state: str
    outcome: str | None
    moved: list[Incident]


def _with_new_state(before: Sequence[Incident], changes: Sequence[IncidentChange]) -> list[Incident]:
    states = {incident.id: incident.state for incident in before}
    return [change.incident for change in changes if states.get(change.incident.id) != change.incident.state]


def _record(before: Row[Any], settled: RunJudgement) -> None:
    """Logs the changes of a judgement after its commit."""
    if not before.judged_at:
        activity_log.done("run.opened", run=before.id, project=before.project, name=before.name)
    if settled.state != before.state:
        outcome = settled.outcome if settled.state in HAS_ENDED else None
        activity_log.done(f"run.{settled.state}", run=before.id, project=before.project, outcome=outcome)
    for incident in settled.moved:
        _record_incident(incident, before.project)


def _record_incident(incident: Incident, project: str) -> None:
    what = "opened" if incident.state == "open" else incident.state
    said = {"run": incident.run, "project": project, "verdict": incident.verdict, "severity": incident.severity}
    reason = incident.closed_reason if what == "closed" else None
    activity_log.done(f"incident.{what}", incident=incident.id, **said, step=incident.first_step, reason=reason)


def run_end(streams: Sequence[Row[Any]], silent: Collection[str], world_size: int, now: int) -> tuple[str, int | None]:
    """Computes a run's state and when it ended.

    A run ends when the last life of each rank has ended, and is lost when one of them wrote no final record or its host
    is silent. It waits LATE_RANKS_NS for ranks that never sent anything. A rank that returns makes it running again.

    Args:
        streams: All streams of the run.
        silent: Ids of streams that are reported as lost.
        world_size: The expected number of ranks.
        now: In ns.

    Returns:
        The state, and the time of the end by the clocks of the training hosts, None while the run goes on. A host's
        clock may be ahead, so the time is never after the last batch.
    """
    lives = _last_lives(streams)
    over = [life for life in lives if life.bye_reason is not None or life.id in silent]
    quiet = all(life.last_seen < now - LATE_RANKS_NS for life in lives)
    if not lives or len(over) < len(lives) or (len(lives) < world_size and not quiet):
        return "running", None
    ended = max(min(life.bye.get("time") or life.last_step_time or life.last_seen, life.last_seen) for life in lives)
    return ("lost" if any(life.bye_reason in (None, "lost") for life in lives) else "ended"), ended


def restarting(streams: Sequence[Row[Any]], environment: Mapping[str, Any] | None, now: int) -> frozenset[str]:
    """Ids of streams whose process has just died and is restarted by its launcher, with all other ranks."""
    said = str((environment or {}).get("max_restarts", ""))
    lives = Counter(stream.rank for stream in streams if stream.role == "rank")
    left = int(said) + 1 - max(lives.values(), default=0) if said.isdecimal() and len(said) < MAX_RESTART_DIGITS else 0
    died = [
        life
        for life in _last_lives(streams)
        if life.bye_reason in ("lost", "signal") and life.last_seen > now - RESTART_NS
    ]
    return frozenset(life.id for life in died if left > 0)


def _last_lives(streams: Sequence[Row[Any]]) -> list[Row[Any]]:
    """The newest stream of each rank that has sent a hello."""
    spoken = [stream for stream in streams if stream.role == "rank" and stream.schema is not None]
    return list(
        {stream.rank: stream for stream in sorted(spoken, key=lambda stream: (stream.started, stream.id))}.values()
    )


def _continued(streams: Sequence[Row[Any]]) -> frozenset[str]:
    """Ids of streams whose rank has a newer life."""
    current = {life.id for life in _last_lives(streams)}
    return frozenset(stream.id for stream in streams if stream.role == "rank" and stream.id not in current)


def _causes(
    streams: Sequence[Row[Any]], findings: Sequence[Row[Any]], of_the_whole: Sequence[tuple[str, Finding]]
) -> list[Cause]:
    """Merges the findings of streams and of the run into causes. A continued life is over."""
    ranks = {stream.id: stream.rank for stream in streams if stream.role == "rank" and stream.schema is not None}
    in_order = sorted(findings, key=lambda finding: ranks.get(finding.stream, 0))  # the lowest rank's finding is shown
    concluded = [(finding.stream, msgspec.convert(finding.body, Finding)) for finding in in_order]
    return merge_causes(explain([*of_ranks(concluded, ranks), *of_the_whole]), ranks, _continued(streams))


def _count_incidents(
    connection: Connection, run: Row[Any], before: Sequence[Incident], changes: Sequence[IncidentChange]
) -> None:
    """Adds new incidents, and tickets that have become pages, to the fleet's totals.

    A counter cannot be decreased, so the ticket stays counted. The order is the same for all runs: no deadlocks.
    """
    severities = {incident.id: incident.severity for incident in before}
    counted = [
        (change.incident.verdict, change.incident.severity)
        for change in changes
        if change.new or change.incident.severity != severities.get(change.incident.id, change.incident.severity)
    ]
    for verdict, severity in sorted(counted):
        judgements.add_total(connection, run.project, "incidents", 1, verdict=verdict, severity=severity)


def _add_to_fleet_totals(
    connection: Connection, run: Row[Any], streams: Sequence[Row[Any]], prices: Prices
) -> dict[str, Any]:
    """Adds the run's progress since the last judgement to the fleet's totals. Returns the counted amounts."""
    ranks = [stream for stream in streams if stream.role == "rank"]
    counters = run_counters.of_run([(rank.rank, rank.counters) for rank in ranks])
    folded: dict[str, Any] = dict(run.fleet_progress)
    dollars = cost.of_run(prices, run.environment, ranks)
    if dollars is not None and (more := round(dollars * MICRODOLLARS_PER_DOLLAR) - folded.get("cost", 0)) > 0:
        judgements.add_total(connection, run.project, "cost", more)
        folded["cost"] = folded.get("cost", 0) + more
    for outcome in ("applied", "skipped"):
        more = counters[outcome] - folded.get(outcome, 0)
        if more > 0:
            judgements.add_total(connection, run.project, "steps", more, outcome=outcome)
            folded[outcome] = counters[outcome]
    return folded


def _add_outcomes(
    connection: Connection,
    run: Row[Any],
    streams: Sequence[Row[Any]],
    findings: Sequence[tuple[str, Finding]],
    seen: Mapping[str, Any],
    folded: dict[str, Any],
    state: str,
    until: int,
) -> None:
    """Adds each outcome of the run to the fleet's totals once, and records it in `folded`.

    Args:
        connection: Of the transaction.
        run: Its row.
        streams: Its streams.
        findings: Each with its stream.
        seen: The evaluation across ranks and baseline.
        folded: Amounts that the totals include already; updated.
        state: Of the run.
        until: When the run ended, or now.
    """
    over = state in HAS_ENDED
    told: dict[str, str | None] = {}
    if "times" not in folded and run.tags.get(outcomes.EXPECTED):
        told["times"] = outcomes.of_time(run.tags, run.started, until, over=over)
    lives = _last_lives(streams)
    last = [finding for stream, finding in findings if stream in {life.id for life in lives}]
    if over and "validations" not in folded:  # reading a long baseline takes several rounds
        told["validations"] = outcomes.of_validation(seen.get("baseline", {}).get("numbers", {}), last)
    if over and "outcome" not in folded:
        latest = judgements.latest_of(connection, run.id, [life.id for life in lives])
        byes = {life.bye_reason for life in lives}
        told["outcome"] = outcomes.of_run(state, byes, last, (values.get("loss") for values in latest))
    for name, outcome in told.items():
        if outcome is not None:
            folded[name] = outcome
            total = "runs" if name == "outcome" else name
            judgements.add_total(connection, run.project, total, 1, outcome=outcome)


def _incident(row: Row[Any]) -> Incident:
    return Incident(**row._mapping)
