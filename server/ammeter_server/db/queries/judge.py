"""Queries of the judge: claims of runs, its input, and its results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, Row, and_, bindparam, func, or_, select, union, update

from ammeter_server.db.engine import insert_or_ignore
from ammeter_server.db.prepared import Prepared, PreparedRow
from ammeter_server.db.tables import findings, incidents, projects, runs, streams, totals

# Built once: building or looking up a statement takes SQLAlchemy as long as the database takes to answer it.
_RUN: BindParameter[str] = bindparam("of_run")
_run = select(runs).where(runs.c.id == _RUN)
_run_unlocked, _run_locked = Prepared(_run), Prepared(_run.with_for_update(key_share=True))
_free = or_(
    runs.c.claimed_by.is_(None), runs.c.claimed_until < bindparam("of_now"), runs.c.claimed_by == bindparam("of_mine")
)
_claim = Prepared(
    update(runs)
    .where(runs.c.id == _RUN, _free)
    .values(claimed_by=bindparam("to_by"), claimed_until=bindparam("to_until"))
)
_unneeded = ("states", "latest", "faults", "lost")
_streams_of = Prepared(
    select(*(column for column in streams.c if column.name not in _unneeded))
    .where(streams.c.run == _RUN)
    .order_by(streams.c.started)
)
_findings_of = Prepared(select(findings).where(findings.c.run == _RUN).order_by(findings.c.stream, findings.c.verdict))
_incidents_of = Prepared(select(incidents).where(incidents.c.run == _RUN).with_for_update())
_is_running = runs.c.state == "running"
_running = select(runs.c.id).where(_is_running)
_not_closed = select(incidents.c.run).where(
    or_(incidents.c.state == "open", incidents.c.state == "acknowledged")  # no IN, which cannot be prepared
)
_recent = select(streams.c.run).where(streams.c.last_seen >= bindparam("of_seen_since"))
_moved = select(func.sum(streams.c.version)).where(streams.c.run == runs.c.id).correlate(runs).scalar_subquery()
_aged = and_(runs.c.judged_at < bindparam("of_before"), or_(_is_running, runs.c.id.in_(_not_closed)))
_ranks_aged = and_(runs.c.judged_at < bindparam("of_ranks_before"), _is_running, runs.c.world_size > 1)
_due = Prepared(
    select(runs.c.id)
    .where(runs.c.id.in_(union(_running, _not_closed, _recent)))
    .where(or_(_moved != runs.c.judged_version, _aged, _ranks_aged))
)
_incident = PreparedRow(incidents)
_total = PreparedRow(totals, lambda before, more: {"value": before.value + more.value})


def due(connection: Connection, before: int, seen_since: int, ranks_before: int) -> list[str]:
    """Returns the runs to judge.

    These are runs whose streams changed since their judgement; running runs and runs with open incidents that were
    judged before `before`; and running runs with several ranks that were judged before `ranks_before`.

    Considers, by index, only running runs, runs with an incident that is not closed, and runs with contact since
    `seen_since`.
    """
    values = {"of_before": before, "of_seen_since": seen_since, "of_ranks_before": ranks_before}
    return [run for (run,) in _due.all(connection, values)]


def claim(
    connection: Connection, run: str, by: str, now: int, until: int, replaceable_claim: str | None = None
) -> bool:
    """Claims the run for this judge until `until`. Returns whether that succeeded.

    replaceable_claim: a claimant whose unexpired lease may be replaced.
    """
    values = {"of_run": run, "of_now": now, "of_mine": replaceable_claim, "to_by": by, "to_until": until}
    return _claim.do(connection, values) == 1


def release(connection: Connection, run: str, values: Mapping[str, Any]) -> None:
    """Stores the judgement and releases the run. The caller has its claim and its lock."""
    connection.execute(update(runs).where(runs.c.id == run).values(claimed_by=None, **values))


def run_of(connection: Connection, run: str) -> Any:
    """Returns the run, locked until the transaction ends; None for an unknown one.

    No process can claim it meanwhile, even after its lease. Ingest is not blocked: its rows only refer to the run.
    """
    return _run_locked.first(connection, {"of_run": run})


def run_unlocked(connection: Connection, run: str) -> Any:
    """Returns the run without a lock; None for an unknown one."""
    return _run_unlocked.first(connection, {"of_run": run})


def baseline(connection: Connection, run: Row[Any], name: str) -> Row[Any] | None:
    """Returns the run's baseline in the same project.

    It is another run with that id, internal or external; else the newest run with that name that began no later.
    """
    same = select(runs).where(runs.c.project == run.project, runs.c.id != run.id)
    by_id = connection.execute(same.where(or_(runs.c.external_id == name, runs.c.id == name))).first()
    if by_id is not None:
        return by_id
    named = same.where(runs.c.name == name, runs.c.started <= run.started)
    return connection.execute(named.order_by(runs.c.started.desc(), runs.c.id.desc()).limit(1)).one_or_none()


def reached(connection: Connection, run: str) -> tuple[int, bool] | None:
    """Returns the progress of the run's most advanced rank; None before the first step.

    Returns:
        The index of its last step, counted over all attempts, and whether all of the run's ranks have ended.
    """
    query = select(streams.c.rank, streams.c.last_step, streams.c.bye_reason)
    rows = connection.execute(query.where(streams.c.run == run, streams.c.role == "rank")).all()
    steps: Counter[int] = Counter()
    for row in rows:
        steps[row.rank] += 0 if row.last_step is None else row.last_step + 1
    most = max(steps.values(), default=0)
    return (most - 1, all(row.bye_reason is not None for row in rows)) if most else None


def streams_of(connection: Connection, run: str) -> list[Any]:
    """Returns the run's streams, without the verdicts' states and other unneeded columns."""
    return _streams_of.named(connection, {"of_run": run})


def latest_of(connection: Connection, run: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the latest values of these streams."""
    query = select(streams.c.latest).where(streams.c.run == run, streams.c.id.in_(ids))
    return [latest for (latest,) in connection.execute(query)]


def findings_of(connection: Connection, run: str) -> list[Any]:
    return _findings_of.named(connection, {"of_run": run})


def incidents_of(connection: Connection, run: str) -> list[Any]:
    """Returns the run's incidents, locked until the transaction ends."""
    return _incidents_of.named(connection, {"of_run": run})


def incident(connection: Connection, run: str, incident_id: str) -> Row[Any] | None:
    """Returns one incident, locked until the transaction ends."""
    query = select(incidents).where(incidents.c.run == run, incidents.c.id == incident_id).with_for_update()
    return connection.execute(query).one_or_none()


def put_incident(connection: Connection, row: Mapping[str, Any]) -> None:
    _incident.put(connection, row)


def make_due(connection: Connection, run: str) -> None:
    """Makes the run due, independent of its streams."""
    connection.execute(update(runs).where(runs.c.id == run).values(judged_version=-1))


def add_project(connection: Connection, name: str, now: int) -> None:
    """Adds the project unless it exists."""
    connection.execute(insert_or_ignore(connection, projects).values(name=name, created=now))


def add_total(connection: Connection, project: str, name: str, amount: int, **labels: str) -> None:
    """Adds to a fleet counter."""
    key = {"project": project, "name": name, "outcome": "", "verdict": "", "severity": ""} | labels
    _total.put(connection, {**key, "value": amount})
