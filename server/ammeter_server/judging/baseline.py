"""What is concluded about a run beside the baseline that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.run_comparison import Pair, agreed
from ammeter.verdicts.framework.run_history import Course, declared
from ammeter_server.curves.run_histories import RunHistoryCache
from ammeter_server.db import Connection, Row, Store
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import judge
from ammeter_server.process import self_metrics

RECOMPARE_FACTOR = 1.2
RECOMPARE_STEPS = 20
"""A live run is compared again once it has a fifth more steps, and so many: all comparisons together go six times over
it."""

Findings = dict[str, Finding]


def names_one(run: Row[Any]) -> str | None:
    """The run that this one says it is to be compared with, by tag or in its config."""
    name = run.tags.get("baseline") or run.config.get("baseline")
    return str(name) if name else None


def metrics_of(*runs: Row[Any]) -> list[str]:
    """The metrics of validation that any of the runs declares."""
    return sorted({name for run in runs for name in declared(run.tags)})


@dataclass(frozen=True)
class BaselineEvaluation:
    """findings: by verdict. kept: what the run's row keeps of it. finished: whether both could be read to the end."""

    findings: Findings
    kept: dict[str, Any]
    finished: bool = True


def evaluate_baseline(
    store: Store, courses: RunHistoryCache, run: Row[Any], before: Mapping[str, Any], until: float
) -> BaselineEvaluation:
    """What is concluded about the run beside the baseline that it names.

    before: what was kept last. It is concluded anew when there is a fifth more to compare, and when one of them has
    ended. until: when reading has to end, by the monotonic clock.
    """
    known = {verdict: msgspec.convert(body, Finding) for verdict, body in before.get("findings", {}).items()}
    with store.reading() as connection:
        name = names_one(run)
        baseline = judge.baseline(connection, run, name) if name else None
        state = baseline and _state(connection, run, baseline)
    if baseline is None or state is None or not _is_due(before, state):
        return BaselineEvaluation(known, dict(before))
    metrics = metrics_of(run, baseline)
    other, mine = (courses.of(store, each, until, metrics) for each in (baseline, run))
    if other is None or mine is None:
        return BaselineEvaluation(known, dict(before), finished=False)
    both = Pair(mine, other, delta=agreed(run.tags.get("validation_delta")))
    answer = verdicts.judge_runs(both)
    for verdict in answer.faults:
        self_metrics.verdict_faults.labels(verdict).inc()
    found = _carried(known, {each.verdict: each for each in answer.findings})
    told = {verdict: plain(msgspec.structs.asdict(finding)) for verdict, finding in found.items()}
    return BaselineEvaluation(found, {**state, "runs": _runs(mine, other), "numbers": both.as_json(), "findings": told})


def _state(connection: Connection, run: Row[Any], baseline: Row[Any]) -> dict[str, Any] | None:
    """How much there is to compare; None while one of them has no step."""
    mine, theirs = (judge.reached(connection, each.id) for each in (run, baseline))
    if mine is None or theirs is None:
        return None
    return {"id": baseline.id, "step": min(mine[0], theirs[0]), "over": mine[1], "baseline_over": theirs[1]}


def _runs(*courses: Course) -> list[str]:
    """All whose settings or steps are in the comparison: when one is deleted, the comparison goes."""
    return sorted({part.stream.partition("/")[0] for each in courses for part in each.parts})


def _is_due(before: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    same = all(before.get(name) == state[name] for name in ("id", "over", "baseline_over"))
    return not same or state["step"] >= before["step"] * RECOMPARE_FACTOR + RECOMPARE_STEPS


def _carried(before: Findings, now: Findings) -> Findings:
    """What is not found any more is over; what is found again has opened once more."""
    over = {name: msgspec.structs.replace(each, active=False) for name, each in before.items() if name not in now}
    times = {name: each.times + (not each.active) for name, each in before.items()}
    return over | {name: msgspec.structs.replace(each, times=times.get(name, 1)) for name, each in now.items()}
