"""A run beside another one: both as they are stored, and what is concluded beside the baseline that a run names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.merging import lives
from ammeter.verdicts.course import Course, Reading
from ammeter.verdicts.finding import Finding
from ammeter.verdicts.pair import Pair, agreed
from ammeter_server import meters
from ammeter_server.plain import plain
from ammeter_server.store import Connection, Row, Store, judgements, series

SAID = ("autocast.entered", "values.logged")
"""Events that a course is made of, beside the rows."""

MORE = 1.2
SOME = 20
"""A live run is compared again once it has a fifth more steps, and so many: all looks together read a run six times."""

Findings = dict[str, Finding]


def pair(store: Store, run: Row[Any], baseline: Row[Any]) -> Pair:
    """Both runs as they are stored: of each the lowest rank, in its first life."""
    return Pair(_course(store, run), _course(store, baseline), delta=agreed(run.tags.get("validation_delta")))


def names_one(run: Row[Any]) -> str | None:
    """The run that this one says it is to be compared with, by tag or in its config."""
    name = run.tags.get("baseline") or run.config.get("baseline")
    return str(name) if name else None


def judged(store: Store, run: Row[Any], before: Mapping[str, Any]) -> tuple[Findings, dict[str, Any]]:
    """What is concluded about the run beside the baseline that it names, and what the run's row keeps of it.

    before: what it kept last. Both are read again when there is a fifth more to read, and when one of them has ended.
    """
    known = {verdict: msgspec.convert(body, Finding) for verdict, body in before.get("findings", {}).items()}
    with store.reading() as connection:
        name = names_one(run)
        baseline = judgements.baseline(connection, run, name) if name else None
        state = baseline and _state(connection, run, baseline)
    if baseline is None or state is None or not _is_due(before, state):
        return known, dict(before)
    both = pair(store, run, baseline)
    answer = verdicts.judge_runs(both)
    for verdict in answer.faults:
        meters.verdict_faults.labels(verdict).inc()
    found = _carried(known, {each.verdict: each for each in answer.findings})
    told = {verdict: plain(msgspec.structs.asdict(finding)) for verdict, finding in found.items()}
    return found, {**state, "numbers": both.as_json(), "findings": told}


def _state(connection: Connection, run: Row[Any], baseline: Row[Any]) -> dict[str, Any] | None:
    """How much there is to compare; None while one of them has no step."""
    mine, theirs = (judgements.reached(connection, each.id) for each in (run, baseline))
    if mine is None or theirs is None:
        return None
    return {"id": baseline.id, "step": min(mine[0], theirs[0]), "over": mine[1], "baseline_over": theirs[1]}


def _is_due(before: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    same = all(before.get(name) == state[name] for name in ("id", "over", "baseline_over"))
    return not same or state["step"] >= before["step"] * MORE + SOME


def _carried(before: Findings, now: Findings) -> Findings:
    """What is not found any more is over; what is found again has opened once more."""
    over = {name: msgspec.structs.replace(each, active=False) for name, each in before.items() if name not in now}
    times = {name: each.times + (not each.active) for name, each in before.items()}
    return over | {name: msgspec.structs.replace(each, times=times.get(name, 1)) for name, each in now.items()}


def _course(store: Store, run: Row[Any]) -> Course:
    reading = Reading()
    with store.reading() as connection:
        known = lives(series.lives(connection, run.id))
        said = series.said(connection, run.id, known[0][0].stream, SAID) if known else []
    if known:
        for view in series.views(store, run.id, known[0][0].stream, None, None):
            reading.add(view)
    for name, step, data in said:
        reading.event(name, step, data)
    over = not known or known[0][0].ended is not None
    return reading.course(over, run.name or run.id, run.config, run.environment, run.world_size)
