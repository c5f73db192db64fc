"""Queries behind the judge: claiming a run, what it reads of it, and what it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, and_, bindparam, func, or_, select, union, update

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.prepared import PreparedRow
from ammeter_server.db.tables import findings, incidents, projects, runs, streams, totals

# Made once: SQLAlchemy takes as long to make a statement and to know it again as the database takes to answer.
_RUN: BindParameter[str] = bindparam("of_run")
_look_at = select(runs).where(runs.c.id == _RUN)
_run_of = _look_at.with_for_update(key_share=True)
_free = or_(
    runs.c.claimed_by.is_(None), runs.c.claimed_until < bindparam("of_now"), runs.c.claimed_by == bindparam("of_mine")
)
_claim = (
    update(runs)
    .where(runs.c.id == _RUN, _free)
    .values(claimed_by=bindparam("to_by"), claimed_until=bindparam("to_until"))
)
_unneeded = ("states", "latest", "faults", "lost")
_streams_of = (
    select(*(column for column in streams.c if column.name not in _unneeded))
    .where(streams.c.run == _RUN)
    .order_by(streams.c.started)
)
_findings_of = select(findings).where(findings.c.run == _RUN).order_by(findings.c.stream, findings.c.verdict)
_incidents_of = select(incidents).where(incidents.c.run == _RUN).with_for_update()
_incident = PreparedRow(incidents)
_total = PreparedRow(totals, lambda before, more: {"value": before.value + more.value})


def due(connection: Connection, before: int, heard_since: int, ranks_before: int) -> list[str]:
    """Runs whose streams have moved since they were judged, and those not looked at since `before` that may age, or
    since `ranks_before` where ranks have to be compared.

    Only runs that can be either are looked at, by index: running ones, those with an incident that is not closed,
    and those that were heard of since `heard_since`.
    """
    running = select(runs.c.id).where(runs.c.state == "running")
    not_closed = select(incidents.c.run).where(incidents.c.state.in_(("open", "acknowledged")))
    heard = select(streams.c.run).where(streams.c.heard >= heard_since)
    moved = select(func.sum(streams.c.version)).where(streams.c.run == runs.c.id).correlate(runs).scalar_subquery()
    ages = and_(runs.c.judged_at < before, or_(runs.c.state == "running", runs.c.id.in_(not_closed)))
    several = and_(runs.c.judged_at < ranks_before, runs.c.state == "running", runs.c.world_size > 1)
    query = select(runs.c.id).where(runs.c.id.in_(union(running, not_closed, heard)))
    return [run for (run,) in connection.execute(query.where(or_(moved != runs.c.judged_version, ages, several)))]


def claim(connection: Connection, run: str, by: str, now: int, until: int, mine: str | None = None) -> bool:
    """Whether the run is now this judge's until the lease ends. mine: who may claim it although it is still theirs."""
    values = {"of_run": run, "of_now": now, "of_mine": mine, "to_by": by, "to_until": until}
    return connection.execute(_claim, values).rowcount == 1


def release(connection: Connection, run: str, values: Mapping[str, Any]) -> None:
    """Writes the judgement and gives the run back; for whoever has claimed it and holds its row."""
    connection.execute(update(runs).where(runs.c.id == run).values(claimed_by=None, **values))


def run_of(connection: Connection, run: str) -> Row[Any] | None:
    """The run, held until the transaction ends: nobody claims it meanwhile, even when its lease has ended.

    Ingest, whose rows only refer to the run, goes on.
    """
    return connection.execute(_run_of, {"of_run": run}).one_or_none()


def look_at(connection: Connection, run: str) -> Row[Any] | None:
    """The run as it stands, held by nobody."""
    return connection.execute(_look_at, {"of_run": run}).one_or_none()


def baseline(connection: Connection, run: Row[Any], name: str) -> Row[Any] | None:
    """The other run of this project with that id, its own or the external one, else the newest with that name that
    began no later."""
    same = select(runs).where(runs.c.project == run.project, runs.c.id != run.id)
    by_id = connection.execute(same.where(or_(runs.c.external_id == name, runs.c.id == name))).first()
    if by_id is not None:
        return by_id
    named = same.where(runs.c.name == name, runs.c.started <= run.started)
    return connection.execute(named.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(1)).one_or_none()


def reached(connection: Connection, run: str) -> tuple[int, bool] | None:
    """How many steps the run's rank that made most of them has made over all its lives, less one, and whether all have
    said goodbye; None before the first step."""
    query = select(streams.c.rank, streams.c.last_step, streams.c.bye_reason)
    rows = connection.execute(query.where(streams.c.run == run, streams.c.role == "rank")).all()
    steps: Counter[int] = Counter()
    for row in rows:
        steps[row.rank] += 0 if row.last_step is None else row.last_step + 1
    most = max(steps.values(), default=0)
    return (most - 1, all(row.bye_reason is not None for row in rows)) if most else None


def streams_of(connection: Connection, run: str) -> list[Row[Any]]:
    """The run's streams without the verdicts' states."""
    return list(connection.execute(_streams_of, {"of_run": run}))


def latest_of(connection: Connection, run: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The last values of these streams."""
    query = select(streams.c.latest).where(streams.c.run == run, streams.c.id.in_(ids))
    return [latest for (latest,) in connection.execute(query)]


def findings_of(connection: Connection, run: str) -> list[Row[Any]]:
    return list(connection.execute(_findings_of, {"of_run": run}))


def incidents_of(connection: Connection, run: str) -> list[Row[Any]]:
    """The run's incidents, held until the transaction ends."""
    return list(connection.execute(_incidents_of, {"of_run": run}))


def incident(connection: Connection, run: str, incident_id: str) -> Row[Any] | None:
    """One incident, held until the transaction ends."""
    query = select(incidents).where(incidents.c.run == run, incidents.c.id == incident_id).with_for_update()
    return connection.execute(query).one_or_none()


def put_incident(connection: Connection, row: Mapping[str, Any]) -> None:
    _incident.put(connection, row)


def look_again(connection: Connection, run: str) -> None:
    """Makes the run due, whatever its streams say."""
    connection.execute(update(runs).where(runs.c.id == run).values(judged_version=-1))


def add_project(connection: Connection, name: str, now: int) -> None:
    """Makes the project known, once."""
    connection.execute(insert_or_ignore(connection, projects).values(name=name, created=now))


def add_total(connection: Connection, project: str, name: str, amount: int, **labels: str) -> None:
    """Adds to a fleet counter."""
    key = {"project": project, "name": name, "outcome": "", "verdict": "", "severity": ""} | labels
    _total.put(connection, {**key, "value": amount})
