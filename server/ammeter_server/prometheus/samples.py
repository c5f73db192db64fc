"""Samples of runs, incidents and the fleet for /metrics, computed purely from table rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ammeter.counters import histograms
from ammeter.counters import run as run_counters
from ammeter.counters.events import OTHER, RESTORES
from ammeter.verdicts.framework.float16 import FLOAT16_MAX
from ammeter_server.config.prices import Prices
from ammeter_server.db import Row
from ammeter_server.prometheus.exposition import Exposition
from ammeter_server.runs import cost, devices
from ammeter_server.runs.rank_totals import (
    count_not_judged,
    fallbacks,
    latest,
    lost,
    newest_step,
    operator_seconds,
    precision,
    ranks_reporting,
)

MAX_LABEL_CHARS = 200
MAX_REASONS = 2
MAX_FALLBACKS = 2
MAX_OPERATORS = 3
MAX_INCIDENTS = 8
MAX_DEVICES = 4
"""Limits of series whose labels come from outside; a run stays below 100 series."""

EXPOSED_BOUNDS = {"grad_norm": slice(6, 12), "step_seconds": slice(3, 14)}
"""The histogram bounds that are exposed: 1e-2 to 1e3, and 10 ms to 30 s."""

MEMORY_COLUMNS = {"allocated": "device_allocated_bytes", "reserved": "device_reserved_bytes"}
"""Kinds of memory and the columns in which torch reports them."""

MICRODOLLARS_PER_DOLLAR = 10**6
"""Fleet counters are integers; the dollar counter counts millionths."""

OUTCOMES = (
    *(("runs", outcome) for outcome in ("ended", "diverged", "failed", "lost")),
    *(("steps", outcome) for outcome in ("applied", "skipped")),
    *(("validations", outcome) for outcome in ("held", "drifted")),
    *(("times", outcome) for outcome in ("expected", "late")),
)
"""Names and outcomes of the fleet counters."""


def add_run(
    samples: Exposition, run: Row[Any], streams: Sequence[Row[Any]], now: int, *, info_only: bool, prices: Prices = ()
) -> None:
    """Adds the samples of one run.

    Args:
        streams: All streams of the run, the oldest first.
        info_only: Adds only the run's description and its end.
    """
    ranks = [stream for stream in streams if stream.role == "rank"]
    _add_info(samples, run, ranks)
    if run.ended is not None:
        samples.add("ammeter_run_end_timestamp_seconds", run.ended / 1e9, run.id)
    if info_only:
        return
    counters = run_counters.of_run([(stream.rank, stream.counters) for stream in ranks])
    last = latest(ranks)
    _add_state(samples, run, ranks, now)
    _add_scaler(samples, run.id, counters, last)
    _add_numerics(samples, run.id, counters, last)
    _add_kernels(samples, run.id, ranks, last)
    _add_speed(samples, run.id, counters)
    _add_quality(samples, run.id, counters, last)
    _add_agent(samples, run.id, counters, streams)
    _add_baseline(samples, run)
    _add_devices(samples, run, streams, now)
    _add_cost(samples, run, ranks, prices)


def add_incidents(samples: Exposition, incidents: Sequence[Row[Any]]) -> None:
    """Adds 1 for open and 0 for recently closed incidents.

    There is one series per run, verdict and severity.
    """
    active: dict[tuple[str, ...], int] = {}
    for incident in incidents:
        labels: tuple[str, ...] = (incident.run, incident.project, incident.verdict, incident.severity)
        active[labels] = max(active.get(labels, 0), int(incident.state != "closed"))
    per_run: dict[str, int] = {}
    for labels, value in sorted(active.items(), key=lambda item: (-item[1], item[0][3], item[0])):
        per_run[labels[0]] = per_run.get(labels[0], 0) + 1
        if per_run[labels[0]] <= MAX_INCIDENTS:
            samples.add("ammeter_incident_active", value, *labels)


def add_fleet(samples: Exposition, totals: Sequence[Row[Any]]) -> None:
    """Adds the counters without a run label; retention never decreases them.

    Each outcome of a project starts at 0 with the project's first number, so that the first failure is an increase.
    """
    projects = {total.project for total in totals}
    counted = {(project, name, outcome): 0 for project in projects for name, outcome in OUTCOMES}
    for total in sorted(totals, key=tuple):
        if total.name == "incidents":
            samples.add("ammeter_incidents_total", total.value, total.project, total.verdict, total.severity)
        elif total.name == "cost":
            samples.add("ammeter_fleet_cost_dollars_total", total.value / MICRODOLLARS_PER_DOLLAR, total.project)
        elif (total.name, total.outcome) in OUTCOMES:
            counted[total.project, total.name, total.outcome] = total.value
    for (project, name, outcome), value in sorted(counted.items()):
        samples.add(f"ammeter_fleet_{name}_total", value, project, outcome)


def _add_info(samples: Exposition, run: Row[Any], ranks: Sequence[Row[Any]]) -> None:
    environment = run.environment or {}
    known = (precision(ranks), environment.get("torch"), environment.get("device"))
    name, *others = (str(text or "")[:MAX_LABEL_CHARS] for text in (run.name or run.id, *known))
    samples.add("ammeter_run_info", 1, run.id, name, run.project, *others)


def _add_state(samples: Exposition, run: Row[Any], ranks: Sequence[Row[Any]], now: int) -> None:
    for state in ("running", "ended", "lost"):
        samples.add("ammeter_run_state", int(run.state == state), run.id, state)
    samples.add("ammeter_run_start_timestamp_seconds", run.started / 1e9, run.id)
    samples.add("ammeter_run_world_size", run.world_size, run.id)
    samples.add("ammeter_run_ranks_reporting", ranks_reporting(run.state, ranks, now), run.id)
    newest = newest_step(ranks)
    if newest is not None:
        _, step, time = newest
        samples.add("ammeter_run_step", step, run.id)
        samples.add("ammeter_run_last_step_timestamp_seconds", time / 1e9, run.id)


def _add_scaler(samples: Exposition, run: str, counters: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    for outcome in ("applied", "skipped"):
        samples.add("ammeter_steps_total", counters[outcome], run, outcome)
    samples.add("ammeter_scaler_scale", last.get("scale"), run)
    samples.add("ammeter_scaler_headroom_doublings", headroom(last), run)
    samples.add("ammeter_scaler_scale_changes_total", counters["growths"], run, "up")
    samples.add("ammeter_scaler_scale_changes_total", counters["backoffs"], run, "down")
    samples.add("ammeter_overflow_events_total", counters["overflow_events"], run)
    samples.add("ammeter_consecutive_skipped_steps", counters["consecutive_skipped"], run)


def headroom(last: Mapping[str, Any]) -> float | None:
    """Doublings of the scale until the largest gradient passes float16's largest number; None when unknown."""
    scale, largest = last.get("scale"), last.get("grad_absmax")
    if not isinstance(scale, float | int) or not isinstance(largest, float | int):
        return None
    scaled = scale * largest
    return math.log2(FLOAT16_MAX / scaled) if 0 < scaled < math.inf else None


def _add_numerics(samples: Exposition, run: str, counters: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    for kind in ("nan", "inf"):
        samples.add("ammeter_nonfinite_values_total", counters[f"nonfinite_{kind}"], run, kind)
    samples.add("ammeter_nonfinite_steps_total", counters["nonfinite_steps"], run)
    if counters["last_nonfinite_time"]:
        samples.add("ammeter_last_nonfinite_timestamp_seconds", counters["last_nonfinite_time"] / 1e9, run)
    samples.add_histogram("ammeter_grad_norm", *_histogram(counters, "grad_norm"), counters["grad_norm_sum"], run)
    samples.add("ammeter_last_grad_norm", last.get("grad_norm"), run)
    samples.add("ammeter_grad_underflow_ratio", last.get("grad_underflow"), run)
    samples.add("ammeter_lost_update_ratio", last.get("lost_updates"), run)
    samples.add("ammeter_update_to_weight_ratio", last.get("update_ratio"), run)
    samples.add("ammeter_last_loss", last.get("loss"), run)


def _add_kernels(samples: Exposition, run: str, ranks: Sequence[Row[Any]], last: Mapping[str, Any]) -> None:
    samples.add("ammeter_low_precision_flops_ratio", last.get("low_precision_share"), run)
    for (op, reason), share in fallbacks(ranks, MAX_FALLBACKS).items():
        samples.add("ammeter_kernel_fallback_flops_ratio", share, run, op, reason)
    for (op, dtype), seconds in operator_seconds(ranks, MAX_OPERATORS).items():
        samples.add("ammeter_operator_seconds", seconds, run, op, dtype)


def _add_speed(samples: Exposition, run: str, counters: Mapping[str, Any]) -> None:
    bounds, counts = _histogram(counters, "step_seconds")
    samples.add_histogram("ammeter_step_duration_seconds", bounds, counts, counters["step_seconds"], run)
    samples.add("ammeter_samples_total", counters["samples"], run)


def _histogram(counters: Mapping[str, Any], name: str) -> tuple[Sequence[float], list[int]]:
    """The exposed bounds, the counts between them, and the count above the last."""
    exposed, counts = EXPOSED_BOUNDS[name], counters[f"{name}_histogram"]
    below, above = sum(counts[: exposed.start + 1]), sum(counts[exposed.stop :])
    return histograms.BOUNDS[name][exposed], [below, *counts[exposed.start + 1 : exposed.stop], above]


def _add_quality(samples: Exposition, run: str, counters: Mapping[str, Any], last: Mapping[str, Any]) -> None:
    samples.add("ammeter_last_validation_loss", last.get("val_loss"), run)
    for outcome in ("complete", "partial"):
        samples.add("ammeter_checkpoint_saves_total", counters[f"checkpoints_{outcome}"], run, outcome)
    if any(counters.get(f"restores_{outcome}") for outcome in RESTORES):
        passed, failed = counters["restores_passed"], counters["restores_failed"] + counters["restores_partial"]
        samples.add("ammeter_checkpoint_restores_total", passed, run, "passed")
        samples.add("ammeter_checkpoint_restores_total", failed, run, "failed")
    if counters["checkpoint_time"]:
        samples.add("ammeter_checkpoint_last_timestamp_seconds", counters["checkpoint_time"] / 1e9, run)


def _add_baseline(samples: Exposition, run: Row[Any]) -> None:
    """Adds the comparison with the baseline, if there is one with common steps."""
    comparison = run.evaluation.get("baseline", {})
    numbers = comparison.get("numbers", {})
    if baseline := comparison.get("id"):
        samples.add("ammeter_run_baseline_info", 1, run.id, baseline, comparison.get("precision") or "")
    samples.add("ammeter_speedup_vs_baseline_ratio", numbers.get("speedup"), run.id)
    samples.add("ammeter_memory_vs_baseline_ratio", numbers.get("memory_ratio"), run.id)
    samples.add("ammeter_validation_delta_ratio", numbers.get("validation_delta"), run.id)


def _add_devices(samples: Exposition, run: Row[Any], streams: Sequence[Row[Any]], now: int) -> None:
    """Adds memory as torch reports it, and device metrics only while the run is running."""
    ranks = [stream for stream in streams if stream.role == "rank"]
    for kind, column in MEMORY_COLUMNS.items():
        samples.add("ammeter_device_memory_bytes", devices.highest(ranks, column), run.id, kind)
    if run.state != "running":
        return
    run_devices = devices.of_run(streams, now)
    used = [device.memory_used_bytes for device in run_devices if device.memory_used_bytes is not None]
    samples.add("ammeter_device_memory_bytes", max(used, default=None), run.id, "used")
    for device in devices.limited(run_devices, MAX_DEVICES):
        labels = (run.id, device.host[:MAX_LABEL_CHARS], device.name, device.gpu, device.uuid)
        samples.add("ammeter_device_utilization_ratio", device.utilization, *labels)
        samples.add("ammeter_device_power_watts", device.power_watts, *labels)
        samples.add("ammeter_device_temperature_celsius", device.temperature_celsius, *labels)


def _add_cost(samples: Exposition, run: Row[Any], ranks: Sequence[Row[Any]], prices: Prices) -> None:
    samples.add("ammeter_run_cost_dollars", cost.of_run(prices, run.environment, ranks, run.tags), run.id)
    samples.add("ammeter_epoch_duration_seconds", cost.seconds_per_epoch(ranks), run.id)
    samples.add("ammeter_cost_per_epoch_dollars", cost.per_epoch(prices, run.environment, ranks, run.tags), run.id)


def _add_agent(samples: Exposition, run: str, counters: Mapping[str, Any], streams: Sequence[Row[Any]]) -> None:
    ranks = [stream for stream in streams if stream.role == "rank"]
    if counters["step_seconds"] > 0:
        samples.add("ammeter_agent_overhead_ratio", counters["overhead_seconds"] / counters["step_seconds"], run)
    samples.add("ammeter_verdicts_not_judged", count_not_judged(ranks), run)
    by_reason = {reason: sum(counts.values()) for reason, counts in lost(streams).items()}
    exposed = dict(sorted(by_reason.items())[:MAX_REASONS])
    others = sum(by_reason.values()) - sum(exposed.values())
    if others:
        exposed[OTHER] = exposed.get(OTHER, 0) + others
    for reason, records in exposed.items():
        samples.add("ammeter_agent_lost_records_total", records, run, reason)
    samples.add("ammeter_agent_journal_bytes", sum(stream.backlog for stream in streams), run)
