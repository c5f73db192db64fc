"""Compares a run with the baseline that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ammeter import verdicts
from ammeter.verdicts.framework.finding import Finding
from ammeter.verdicts.framework.run_comparison import RunComparison, parse_share
from ammeter.verdicts.framework.run_history import RunHistory, declared_metrics
from ammeter_server.curves.run_histories import RunHistoryCache
from ammeter_server.db import Connection, Row, Store
from ammeter_server.db.json_safe import plain
from ammeter_server.db.queries import judge
from ammeter_server.process import self_metrics
from ammeter_server.runs.baselines import baseline_name

RECOMPARE_FACTOR = 1.2
RECOMPARE_STEPS = 20
"""A live run is compared again once it has a fifth more steps and RECOMPARE_STEPS: all comparisons together read it
about six times."""

Findings = dict[str, Finding]


def metrics_of(*runs: Row[Any]) -> list[str]:
    """Validation metrics that any of the runs declares."""
    return sorted({name for run in runs for name in declared_metrics(run.tags)})


@dataclass(frozen=True)
class BaselineEvaluation:
    """findings: by verdict. stored: written to the run's row. finished: whether both runs were read to the end."""

    findings: Findings
    stored: dict[str, Any]
    finished: bool = True


def evaluate_baseline(
    store: Store, histories: RunHistoryCache, run: Row[Any], before: Mapping[str, Any], until: float
) -> BaselineEvaluation:
    """Compares the run with its baseline, when a fifth more steps are there or one of them has ended.

    Args:
        store: The database.
        histories: The cache of run histories.
        run: Its row.
        before: The stored result of the last comparison.
        until: Deadline for reading, by the monotonic clock.
    """
    known = {verdict: msgspec.convert(body, Finding) for verdict, body in before.get("findings", {}).items()}
    with store.reading() as connection:
        name = baseline_name(run)
        baseline = judge.baseline(connection, run, name) if name else None
        state = baseline and _state(connection, run, baseline)
    if baseline is None or state is None or not _is_due(before, state):
        return BaselineEvaluation(known, dict(before))
    metrics = metrics_of(run, baseline)
    other, mine = (histories.of(store, compared, until, metrics) for compared in (baseline, run))
    if other is None or mine is None:
        return BaselineEvaluation(known, dict(before), finished=False)
    both = RunComparison(mine, other, delta=parse_share(run.tags.get("validation_delta")))
    answer = verdicts.judge_runs(both)
    self_metrics.count_faults(answer.faults)
    findings = _carry_over(known, {finding.verdict: finding for finding in answer.findings})
    as_json = {verdict: plain(msgspec.structs.asdict(finding)) for verdict, finding in findings.items()}
    return BaselineEvaluation(
        findings,
        {
            **state,
            "precision": other.precision,
            "runs": _compared_runs(mine, other),
            "numbers": both.as_json(),
            "findings": as_json,
        },
    )


def _state(connection: Connection, run: Row[Any], baseline: Row[Any]) -> dict[str, Any] | None:
    """The extent of the comparison; None while one of the runs has no step."""
    mine, theirs = (judge.reached(connection, compared.id) for compared in (run, baseline))
    if mine is None or theirs is None:
        return None
    return {"id": baseline.id, "step": min(mine[0], theirs[0]), "over": mine[1], "baseline_over": theirs[1]}


def _compared_runs(*histories: RunHistory) -> list[str]:
    """Ids of all runs in the comparison: deleting one of them deletes the comparison."""
    return sorted({part.stream.partition("/")[0] for history in histories for part in history.parts})


def _is_due(before: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    same = all(before.get(name) == state[name] for name in ("id", "over", "baseline_over"))
    return not same or state["step"] >= before["step"] * RECOMPARE_FACTOR + RECOMPARE_STEPS


def _carry_over(before: Findings, now: Findings) -> Findings:
    """Marks findings that are gone as inactive, and counts findings that have returned."""
    over = {name: msgspec.structs.replace(finding, active=False) for name, finding in before.items() if name not in now}
    times = {name: finding.times + (not finding.active) for name, finding in before.items()}
    return over | {name: msgspec.structs.replace(finding, times=times.get(name, 1)) for name, finding in now.items()}
