"""The on-call board: current incidents, the affected runs, and the state of the collector."""

from __future__ import annotations

from dashboards.board import Board
from dashboards.panels import WHOLE, Chart, Figure, Listing, variable
from dashboards.promql import (
    PROJECTS,
    RUN,
    RUNNING,
    increase,
    named,
    of_projects,
    open_incidents,
    open_incidents_named,
    or_none,
    quantile,
    rate,
)

FAILED = f'{PROJECTS},outcome!="ended"'
PAGES, TICKETS = f'{PROJECTS},severity="page"', f'{PROJECTS},severity="ticket"'


def while_running(expression: str) -> str:
    return f"({expression}) and on (run) ({RUNNING})"


SILENT = while_running("ammeter_run_world_size - ammeter_run_ranks_reporting")

TOP = (
    Figure(
        "Active runs",
        "Runs that train at this moment.",
        "none",
        [(or_none(f"count({of_projects(RUNNING)})"), "runs")],
    ),
    Figure(
        "Incidents that page",
        "Open or acknowledged incidents of severity page.",
        "none",
        [(or_none(f"count({open_incidents(PAGES)})"), "incidents")],
    ),
    Figure(
        "Tickets",
        "Open or acknowledged incidents of severity ticket.",
        "none",
        [(or_none(f"count({open_incidents(TICKETS)})"), "incidents")],
    ),
    Figure(
        "Runs with NaN or Inf",
        "Runs that had a gradient with NaN or Inf in the last five minutes.",
        "none",
        [(or_none(f"count({of_projects('time() - ammeter_last_nonfinite_timestamp_seconds < 300')})"), "runs")],
    ),
    Figure(
        "Runs that failed",
        "Runs that an exception or a signal ended, or that died without a goodbye, in the time shown.",
        "none",
        [(or_none(f"round(sum({increase('ammeter_fleet_runs_total', FAILED)}))"), "runs")],
    ),
    Figure(
        "Silent ranks",
        "Ranks of running trainings that were not heard of in the last half minute.",
        "none",
        [(or_none(f"sum({of_projects(SILENT)})"), "ranks")],
    ),
    Listing(
        "Open incidents",
        "What a verdict found and what is not over. The collector's page of the run has cause and fix.",
        "none",
        "Open",
        [(open_incidents_named(PROJECTS), "")],
        width=WHOLE,
    ),
)

NUMERICS = (
    Chart(
        "NaN and Inf",
        "NaN and Inf elements in gradients per second. Inf alone is overflow; NaN is born in an operation.",
        "short",
        [(named(rate("ammeter_nonfinite_values_total")), RUN + " {{kind}}")],
    ),
    Chart(
        "Steps with NaN or Inf",
        "Steps per minute with a NaN or Inf in the gradients.",
        "cpm",
        [(named(rate("ammeter_nonfinite_steps_total", per_minute=True)), RUN)],
    ),
    Chart(
        "Overflow events",
        "Steps per minute in which GradScaler found an Inf or NaN. A few at the start of a run are calibration.",
        "cpm",
        [(named(rate("ammeter_overflow_events_total", per_minute=True)), RUN)],
    ),
    Chart(
        "Skipped steps in a row",
        "Five in a row after the start page a person: every one of them halves the scale.",
        "none",
        [(named("ammeter_consecutive_skipped_steps"), RUN)],
        bars=True,
    ),
)

RUNS = (
    Chart(
        "Runs by state",
        "Runs that go on, and what became of those that were over in the last five minutes.",
        "none",
        [(f"sum by (state) ({of_projects('ammeter_run_state')})", "{{state}}")],
    ),
    Chart(
        "Failures",
        "Runs in the interval up to each moment that an exception or a signal ended, or that died without a goodbye.",
        "none",
        [(f"sum by (outcome) (increase(ammeter_fleet_runs_total{{{FAILED}}}[$__rate_interval]))", "{{outcome}}")],
    ),
    Chart(
        "Since the last step",
        "How long ago the last step of each running training closed. A line that climbs is a run that stands still.",
        "s",
        [(named(while_running("time() - ammeter_run_last_step_timestamp_seconds")), RUN)],
    ),
    Chart(
        "Ranks reporting",
        "Share of its ranks that each running training was heard of in the last half minute.",
        "percentunit",
        [(named(while_running("ammeter_run_ranks_reporting / ammeter_run_world_size")), RUN)],
    ),
)

DEVICES = (
    Chart(
        "GPU utilization by node",
        "Share of the time that the GPUs of each node computed, the mean of those that train.",
        "percentunit",
        [(f"avg by (hostname) ({of_projects('ammeter_device_utilization_ratio')})", "{{hostname}}")],
        missing="no GPU is read: it takes ammeter[nvml] where the training runs",
    ),
    Chart(
        "Device memory",
        "The most of any rank that torch has in tensors and holds, and the most of any device that is used.",
        "bytes",
        [(named("ammeter_device_memory_bytes"), RUN + " {{kind}}")],
        missing="no run on a GPU",
    ),
    Chart(
        "Temperature",
        "The hottest GPU of each node. Above some 85 degrees it slows itself down.",
        "celsius",
        [(f"max by (hostname) ({of_projects('ammeter_device_temperature_celsius')})", "{{hostname}}")],
        missing="no GPU is read",
    ),
    Chart(
        "Power",
        "What the GPUs of each node draw that train. Little power at full utilization: they wait for memory.",
        "watt",
        [(f"sum by (hostname) ({of_projects('ammeter_device_power_watts')})", "{{hostname}}")],
        missing="no GPU is read",
    ),
)

COLLECTOR = (
    Chart(
        "Batches taken in",
        "Batches per second by the HTTP status of the answer. 429 and 503 are asked again; 4xx else is a fault.",
        "reqps",
        [(f"sum by (code) ({rate('ammeter_collector_ingest_requests_total')})", "{{code}}")],
    ),
    Chart(
        "Time to commit",
        "99th percentile of the time from a batch's last byte to its commit. A second of it is a second later for "
        "whoever is paged.",
        "s",
        [(quantile("0.99", "ammeter_collector_ingest_duration_seconds", by=""), "p99")],
    ),
    Chart(
        "Notifications that wait",
        "Notifications that are still to be delivered. More than none for minutes: a channel refuses them.",
        "none",
        [("max(ammeter_collector_outbox_pending)", "waiting")],
    ),
    Chart(
        "Judged late by",
        "How long the run that waits longest has not been judged. Some thirty seconds are usual; minutes: nobody is "
        "told of what breaks.",
        "s",
        [("min(ammeter_collector_judge_lag_seconds)", "lag")],
    ),
    Chart(
        "Batches that wait",
        "Batches that are taken in and wait until they are committed.",
        "none",
        [("sum(ammeter_collector_ingest_waiting)", "waiting")],
    ),
    Chart(
        "Memory of the collector",
        "What each collector process has in memory.",
        "bytes",
        [("ammeter_collector_process_resident_memory_bytes", "{{instance}}")],
    ),
    Chart(
        "Free disk",
        "Of the disk that SQLite's database lies on. PostgreSQL's is another machine's.",
        "bytes",
        [("min(ammeter_collector_storage_disk_free_bytes)", "free")],
        missing="no SQLite",
    ),
    Chart(
        "Database on disk",
        "What the collector's database takes.",
        "bytes",
        [("max(ammeter_collector_storage_bytes)", "database")],
    ),
)

BOARD = Board(
    name="on-call",
    title="Ammeter / On call",
    description="What is broken now and where: incidents, NaN, Inf, failures, silent runs, the collector itself.",
    variables=(variable("project", "Project", "label_values(ammeter_run_info, project)"),),
    rows=(
        ("", TOP),
        ("NaN, Inf and overflow", NUMERICS),
        ("Runs", RUNS),
        ("Devices", DEVICES),
        ("The collector", COLLECTOR),
    ),
)
