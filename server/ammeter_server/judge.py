"""Owns what belongs to a run: incidents and who is told, the run's end, and the fleet's totals.

A judge claims a run with a lease, so that several collectors never judge it at once, reads what its streams have
concluded, and writes everything in one transaction. Ingest only rings; what is missed is found by the sweeper.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from ammeter.verdicts.causes import explain, of_ranks
from ammeter.verdicts.finding import Finding
from ammeter_server import progress, whole
from ammeter_server.channels.message import message
from ammeter_server.courses import Courses
from ammeter_server.handling import Cause, Change, Incident, acknowledged, closed_by_hand, handle, merge
from ammeter_server.settings import Settings
from ammeter_server.store import Connection, Row, Store, audit, judgements, outbox

log = logging.getLogger(__name__)

LEASE = 30 * 10**9
AGEING = 30 * 10**9
"""How often a run is looked at when nothing moves: expiry, late ranks, totals."""

AGEING_OF_RANKS = 5 * 10**9
"""How often one with several ranks is: what they disagree in shows in none of their streams."""

RECENT = 3600 * 10**9
"""Runs that were not heard of for longer have been judged; only the first look after a start asks about all."""

LATE = 30 * 10**9
"""How long a run whose other ranks have ended waits for ranks that were never heard of."""

RESTART = 120 * 10**9
"""How long a process that died may take to come again where its launcher starts it again: to load torch and the model,
and to reach watch(). Until then nobody is woken for it."""

MAX_DIGITS = 6
"""Of a number of restarts that is believed."""

HAS_ENDED = ("ended", "lost")


class Judge:
    """Judges runs for one collector process. channels: names of those that are told."""

    def __init__(self, store: Store, settings: Settings, channels: Sequence[str]) -> None:
        self.store = store
        self.settings = settings
        self.channels = tuple(channels)
        self.name = uuid.uuid4().hex
        self.courses = Courses()
        self._heard_since = 0

    def judge_due(self, now: int) -> bool:
        """Judges every run that has to be looked at. Returns whether somebody has to be told something."""
        with self.store.reading() as connection:
            due = judgements.due(connection, now - AGEING, self._heard_since, now - AGEING_OF_RANKS)
        told = [self._judge_guarded(run, now) for run in due]
        self._heard_since = now - RECENT
        return any(told)

    def judge(self, run: str, now: int) -> bool:
        """Judges one run unless another judge is at it. Returns whether somebody has to be told something."""
        with self.store.writing() as connection:
            if not judgements.claim(connection, run, self.name, now, now + LEASE):
                return False
        seen = self._look(run, now)  # which reads many steps, so nobody waits for it
        with self.store.writing() as connection:
            row = judgements.run_of(connection, run)
            if row is None or row.claimed_by != self.name:
                return False
            return self._settle(connection, row, seen, now)

    def _look(self, run: str, now: int) -> whole.Whole:
        """What is concluded about the run as a whole. Where that fails, what its streams say is judged without it."""
        try:
            return whole.look(self.store, self.courses, run, now)
        except Exception:
            log.exception("the ranks or the baseline of run %s could not be compared", run)
            return whole.Whole()

    def _judge_guarded(self, run: str, now: int) -> bool:
        try:
            return self.judge(run, now)
        except Exception:  # the other runs are judged all the same; this one again when its lease has ended
            log.exception("run %s could not be judged", run)
            return False

    def acknowledge(self, incident: str, now: int, by: str = "somebody") -> Incident | None:
        """A person takes an incident on. None when there is no such incident."""
        return self._by_hand(incident, lambda found: Change(acknowledged(found, now)), now, by)

    def close(self, incident: str, now: int, by: str = "somebody") -> Incident | None:
        """A person closes an incident. None when there is no such incident."""
        return self._by_hand(incident, lambda found: closed_by_hand(found, now), now, by)

    def _settle(self, connection: Connection, row: Row[Any], seen: whole.Whole, now: int) -> bool:
        """Everything a judgement writes, in the transaction that gives the run back."""
        streams = judgements.streams_of(connection, row.id)
        incidents = [_incident(each) for each in judgements.incidents_of(connection, row.id)]
        told = any(each.verdict == "run-lost" and each.is_open for each in incidents)
        awaited = frozenset[str]() if told else restarting(streams, row.environment, now)
        quiet = frozenset[str]() if told else awaited | _continued(streams)
        findings = judgements.findings_of(connection, row.id)
        findings = [each for each in findings if each.verdict != "run-lost" or each.stream not in quiet]
        causes = _causes(streams, findings, seen.findings)
        silent = {each.stream for each in findings if each.verdict == "run-lost" and each.active}
        state, ended = ("running", None) if awaited else run_end(streams, silent, row.world_size, now)
        changes = handle(row.id, state in HAS_ENDED, causes, incidents, now)
        for change in changes:
            self._write(connection, row, change, now)
        folded = _fold(connection, row, streams, state)
        if not row.judged_at:
            judgements.add_project(connection, row.project, now)
        version = sum(each.version for each in streams)
        values = {"state": state, "ended": ended, "folded": folded, "judged_version": version, "judged_at": now}
        judgements.release(connection, row.id, values | seen.values)
        return any(change.tell for change in changes)

    def _write(self, connection: Connection, run: Row[Any], change: Change, now: int) -> None:
        incident = change.incident
        judgements.put_incident(connection, msgspec.structs.asdict(incident))
        if change.new:
            labels = {"verdict": incident.verdict, "severity": incident.severity}
            judgements.add_total(connection, run.project, "incidents", 1, **labels)
        if change.tell:
            told = message(change.tell, incident, run.name, run.project, self.settings.page_url)
            outbox.add(connection, run.id, incident.id, change.tell, self.channels, told, now)

    def _by_hand(self, incident_id: str, decide: Callable[[Incident], Change], now: int, by: str) -> Incident | None:
        with self.store.writing() as connection:
            run = judgements.run_of(connection, incident_id.partition(".")[0])
            row = run and judgements.incident(connection, run.id, incident_id)
            if run is None or row is None:
                return None
            before = _incident(row)
            change = decide(before)
            self._write(connection, run, change, now)
            if change.incident.state != before.state:
                audit.add(connection, now, by, f"incident.{change.incident.state}", incident_id, run.project)
            judgements.look_again(connection, run.id)
            return change.incident


def run_end(streams: Sequence[Row[Any]], silent: Collection[str], world_size: int, now: int) -> tuple[str, int | None]:
    """(state, when it ended or None) of a run: over when the last life of each rank is over.

    Lost when one of them died without a goodbye, or its host is silent. Ranks that were never heard of are waited
    for a little; a rank that comes back makes the run running again. silent: streams held to be lost.
    """
    lives = _last_lives(streams)
    over = [each for each in lives if each.bye_reason is not None or each.id in silent]
    quiet = all(each.heard < now - LATE for each in lives)
    if not lives or len(over) < len(lives) or (len(lives) < world_size and not quiet):
        return "running", None
    ended = max(each.bye.get("time") or each.last_step_time or each.heard for each in lives)
    return ("lost" if any(each.bye_reason in (None, "lost") for each in lives) else "ended"), ended


def restarting(streams: Sequence[Row[Any]], environment: Mapping[str, Any] | None, now: int) -> frozenset[str]:
    """The streams of processes that died a moment ago, and that their launcher has said it starts again."""
    said = str((environment or {}).get("max_restarts", ""))
    lives = Counter(each.rank for each in streams if each.role == "rank")
    left = int(said) + 1 - max(lives.values(), default=0) if said.isdecimal() and len(said) < MAX_DIGITS else 0
    died = [each for each in _last_lives(streams) if each.bye_reason == "lost" and each.heard > now - RESTART]
    return frozenset(each.id for each in died if left > 0)


def _last_lives(streams: Sequence[Row[Any]]) -> list[Row[Any]]:
    """The newest stream of each rank that has said who it is."""
    spoken = [each for each in streams if each.role == "rank" and each.schema is not None]
    return list({each.rank: each for each in sorted(spoken, key=lambda each: (each.started, each.id))}.values())


def _continued(streams: Sequence[Row[Any]]) -> frozenset[str]:
    """Those whose rank has another life behind them."""
    current = {each.id for each in _last_lives(streams)}
    return frozenset(each.id for each in streams if each.role == "rank" and each.id not in current)


def _causes(
    streams: Sequence[Row[Any]], findings: Sequence[Row[Any]], of_the_whole: Sequence[tuple[str, Finding]]
) -> list[Cause]:
    """What the verdicts on streams and on the whole come to, causes first. A life that another continued is over."""
    ranks = {each.id: each.rank for each in streams if each.role == "rank" and each.schema is not None}
    concluded = [(each.stream, msgspec.convert(each.body, Finding)) for each in findings]
    return merge(explain([*of_ranks(concluded, ranks), *of_the_whole]), ranks, _continued(streams))


def _fold(connection: Connection, run: Row[Any], streams: Sequence[Row[Any]], state: str) -> dict[str, Any]:
    """Adds the run's progress since the last fold to the fleet's totals, its outcome once. Returns what is folded."""
    counters = progress.of_run([(each.rank, each.counters) for each in streams if each.role == "rank"])
    folded: dict[str, Any] = dict(run.folded)
    for outcome in ("applied", "skipped"):
        more = counters[outcome] - folded.get(outcome, 0)
        if more > 0:
            judgements.add_total(connection, run.project, "steps", more, outcome=outcome)
            folded[outcome] = counters[outcome]
    if state in HAS_ENDED and "outcome" not in folded:
        folded["outcome"] = _outcome(streams, state)
        judgements.add_total(connection, run.project, "runs", 1, outcome=folded["outcome"])
    return folded


def _outcome(streams: Sequence[Row[Any]], state: str) -> str:
    failed = any(each.bye_reason in ("exception", "signal") for each in _last_lives(streams))
    return "failed" if state == "ended" and failed else state


def _incident(row: Row[Any]) -> Incident:
    return Incident(**row._mapping)
