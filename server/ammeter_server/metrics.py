"""GET /metrics: runs and the fleet, read from the tables at scrape time. GET /metrics/self: this process.

Scrape /metrics once, whichever replica answers; scrape /metrics/self on each.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from ammeter.verdicts.float16 import FLOAT16_MAX
from ammeter_server import meters, progress
from ammeter_server.collector import Here
from ammeter_server.exposition import PROCESS, Exposition, exposed
from ammeter_server.runs import latest, lost, ranks_reporting
from ammeter_server.store import Row, outbox
from ammeter_server.store import metrics as query

router = APIRouter(tags=["metrics"])

COUNTERS_STAY = 5 * 60 * 10**9
INFO_STAYS = 3600 * 10**9
"""ns that a finished run's numbers, and what it was, stay on /metrics: seen by the last scrapes, stale for nobody."""

LONGEST_LABEL = 200
MOST_REASONS = 8
MOST_INCIDENTS = 16
"""Caps on what grows with names from outside; a run keeps below 100 series."""

Accept = Annotated[str, Header()]


TEXT: dict[str, Any] = {"schema": {"type": "string"}}
ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/plain": TEXT, "application/openmetrics-text": TEXT}}
}


@router.get("/metrics", summary="Runs and fleet for Prometheus", response_class=Response, responses=ANSWERS)
def read_metrics(here: Here, accept: Accept = "") -> Response:
    """Text exposition, or OpenMetrics for who accepts it."""
    now = time.time_ns()
    with here.store.reading() as connection:
        runs = query.runs_since(connection, now - INFO_STAYS)
        streams = query.streams_since(connection, now - INFO_STAYS)
        incidents = query.incidents_since(connection, now - COUNTERS_STAY)
        totals = query.fleet(connection)
    shown = Exposition()
    by_run: dict[str, list[Row[Any]]] = {run.id: [] for run in runs}
    for stream in streams:
        by_run.setdefault(stream.run, []).append(stream)
    for run in runs:
        add_run(shown, run, by_run[run.id], now)
    add_incidents(shown, incidents)
    add_fleet(shown, totals)
    return exposed(shown.collect(), accept)


@router.get("/metrics/self", summary="This process for Prometheus", response_class=Response, responses=ANSWERS)
def read_own_metrics(here: Here, accept: Accept = "") -> Response:
    """What this collector process did, and what its database holds."""
    shown = Exposition(PROCESS)
    with here.store.reading() as connection:
        shown.add("ammeter_collector_storage_bytes", query.storage_bytes(connection))
        shown.add("ammeter_collector_outbox_pending", outbox.pending(connection))
    shown.add("ammeter_collector_build_info", 1, version("ammeter-server"))
    return exposed([*shown.collect(), *meters.REGISTRY.collect()], accept)


def add_run(shown: Exposition, run: Row[Any], streams: Sequence[Row[Any]], now: int) -> None:
    """What is said of one run: everything while it goes on and a little longer, then only what it was."""
    ranks = [stream for stream in streams if stream.role == "rank"]
    _add_info(shown, run, ranks)
    if run.ended is not None:
        shown.add("ammeter_run_end_timestamp_seconds", run.ended / 1e9, run.id)
        if run.ended < now - COUNTERS_STAY:
            return
    counters = progress.of_run([(stream.rank, stream.counters) for stream in ranks])
    last = latest(ranks)
    _add_state(shown, run, ranks, now)
    _add_scaler(shown, run.id, counters, last)
    _add_numerics(shown, run.id, counters, last)
    _add_speed(shown, run.id, counters)
    _add_agent(shown, run.id, counters, streams)
    _add_baseline(shown, run)


def add_incidents(shown: Exposition, incidents: Sequence[Row[Any]]) -> None:
    """1 for what is open, 0 for what closed a moment ago; one series per run, verdict and severity."""
    active: dict[tuple[str, ...], int] = {}
    for incident in incidents:
        labels: tuple[str, ...] = (incident.run, incident.project, incident.verdict, incident.severity)
        active[labels] = max(active.get(labels, 0), int(incident.state != "closed"))
    per_run: dict[str, int] = {}
    for labels, value in sorted(active.items(), key=lambda each: (-each[1], each[0][3], each[0])):
        per_run[labels[0]] = per_run.get(labels[0], 0) + 1
        if per_run[labels[0]] <= MOST_INCIDENTS:
            shown.add("ammeter_incident_active", value, *labels)


def add_fleet(shown: Exposition, totals: Sequence[Row[Any]]) -> None:
    """Counters without a run: they never decrease, whatever retention deletes."""
    for total in totals:
        if total.name == "incidents":
            shown.add("ammeter_incidents_total", total.value, total.project, total.verdict, total.severity)
        elif total.name in ("runs", "steps"):
            shown.add(f"ammeter_fleet_{total.name}_total", total.value, total.project, total.outcome)


def _add_info(shown: Exposition, run: Row[Any], ranks: Sequence[Row[Any]]) -> None:
    precision = next((stream.precision for stream in reversed(ranks) if stream.precision), None)
    environment = run.environment or {}
    known = (precision, environment.get("torch"), environment.get("device"))
    shown.add("ammeter_run_info", 1, run.id, run.project, *(str(each or "")[:LONGEST_LABEL] for each in known))


def _add_state(shown: Exposition, run: Row[Any], ranks: Sequence[Row[Any]], now: int) -> None:
    for state in ("running", "ended", "lost"):
        shown.add("ammeter_run_state", int(run.state == state), run.id, state)
    shown.add("ammeter_run_start_timestamp_seconds", run.started / 1e9, run.id)
    shown.add("ammeter_run_world_size", run.world_size, run.id)
    shown.add("ammeter_run_ranks_reporting", ranks_reporting(run.state, ranks, now), run.id)
    stepped = [stream for stream in ranks if stream.last_step_time is not None]
    if stepped:
        ahead = max(stepped, key=lambda stream: stream.last_step_time)
        shown.add("ammeter_run_step", ahead.last_step, run.id)
        shown.add("ammeter_run_last_step_timestamp_seconds", ahead.last_step_time / 1e9, run.id)


def _add_scaler(shown: Exposition, run: str, counters: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    for outcome in ("applied", "skipped"):
        shown.add("ammeter_steps_total", counters[outcome], run, outcome)
    shown.add("ammeter_scaler_scale", last.get("scale"), run)
    shown.add("ammeter_scaler_headroom_doublings", headroom(last), run)
    shown.add("ammeter_scaler_scale_changes_total", counters["growths"], run, "up")
    shown.add("ammeter_scaler_scale_changes_total", counters["backoffs"], run, "down")
    shown.add("ammeter_overflow_events_total", counters["overflow_events"], run)
    shown.add("ammeter_consecutive_skipped_steps", counters["consecutive_skipped"], run)


def headroom(last: Mapping[str, Any]) -> float | None:
    """Doublings of the scale that the largest gradient leaves below float16's largest number; None when unknown."""
    scale, largest = last.get("scale"), last.get("grad_absmax")
    if not isinstance(scale, float | int) or not isinstance(largest, float | int):
        return None
    scaled = scale * largest
    return math.log2(FLOAT16_MAX / scaled) if 0 < scaled < math.inf else None


def _add_numerics(shown: Exposition, run: str, counters: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    for kind in ("nan", "inf"):
        shown.add("ammeter_nonfinite_values_total", counters[f"nonfinite_{kind}"], run, kind)
    shown.add("ammeter_nonfinite_steps_total", counters["nonfinite_steps"], run)
    if counters["last_nonfinite_time"]:
        shown.add("ammeter_last_nonfinite_timestamp_seconds", counters["last_nonfinite_time"] / 1e9, run)
    shown.add_histogram("ammeter_grad_norm", progress.BOUNDS["grad_norm"], counters["grad_norm_histogram"], None, run)
    shown.add("ammeter_last_grad_norm", last.get("grad_norm"), run)
    shown.add("ammeter_grad_underflow_ratio", last.get("grad_underflow"), run)
    shown.add("ammeter_last_loss", last.get("loss"), run)


def _add_speed(shown: Exposition, run: str, counters: Mapping[str, Any]) -> None:
    bounds, counts = progress.BOUNDS["step_seconds"], counters["step_seconds_histogram"]
    shown.add_histogram("ammeter_step_duration_seconds", bounds, counts, counters["step_seconds"], run)
    shown.add("ammeter_samples_total", counters["samples"], run)


def _add_baseline(shown: Exposition, run: Row[Any]) -> None:
    """Where the run names one and both have steps in common."""
    numbers = run.whole.get("baseline", {}).get("numbers", {})
    shown.add("ammeter_speedup_vs_baseline_ratio", numbers.get("speedup"), run.id)
    shown.add("ammeter_memory_vs_baseline_ratio", numbers.get("memory_ratio"), run.id)
    shown.add("ammeter_validation_delta_ratio", numbers.get("validation_delta"), run.id)


def _add_agent(shown: Exposition, run: str, counters: Mapping[str, Any], streams: Sequence[Row[Any]]) -> None:
    if counters["step_seconds"] > 0:
        shown.add("ammeter_agent_overhead_ratio", counters["overhead_seconds"] / counters["step_seconds"], run)
    by_reason = {reason: sum(counts.values()) for reason, counts in lost(streams).items()}
    told = dict(sorted(by_reason.items())[:MOST_REASONS])
    rest = sum(by_reason.values()) - sum(told.values())
    for reason, records in {**told, **({"_other": rest} if rest else {})}.items():
        shown.add("ammeter_agent_lost_records_total", records, run, reason)
    shown.add("ammeter_agent_journal_bytes", sum(stream.backlog for stream in streams), run)
