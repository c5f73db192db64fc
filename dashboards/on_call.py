"""The on-call board: current incidents, the affected runs, and the state of the collector."""

from __future__ import annotations

from ammeter_server.ops.prometheus_rules import JUDGE_LAG_SECONDS
from dashboards.board import Board
from dashboards.links import INCIDENT_COLUMNS, INCIDENT_LINKS
from dashboards.panels import (
    BAD_FROM_ZERO,
    FULL_WIDTH,
    WARN_FROM_ZERO,
    Chart,
    Distribution,
    Figure,
    Listing,
)
from dashboards.promql import (
    PROJECTS,
    RUN,
    RUNNING,
    above_zero,
    buckets,
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
        "Running trainings.",
        "none",
        [(or_none(f"count({of_projects(RUNNING)})"), "runs")],
    ),
    Figure(
        "Incidents that page",
        "Open or acknowledged incidents of severity page.",
        "none",
        [(or_none(f"count({open_incidents(PAGES)})"), "incidents")],
        limits=BAD_FROM_ZERO,
    ),
    Figure(
        "Tickets",
        "Open or acknowledged incidents of severity ticket.",
        "none",
        [(or_none(f"count({open_incidents(TICKETS)})"), "incidents")],
        limits=WARN_FROM_ZERO,
    ),
    Figure(
        "Runs with NaN or Inf",
        "Runs that had a gradient with NaN or Inf in the last five minutes.",
        "none",
        [(or_none(f"count({of_projects('time() - ammeter_last_nonfinite_timestamp_seconds < 300')})"), "runs")],
        limits=BAD_FROM_ZERO,
    ),
    Figure(
        "Runs that failed",
        "Runs in the displayed time that ended by an exception or a signal, or without a final record.",
        "none",
        [(or_none(f"round(sum({increase('ammeter_fleet_runs_total', FAILED)}))"), "runs")],
        limits=WARN_FROM_ZERO,
    ),
    Figure(
        "Silent ranks",
        "Ranks of running trainings without a report in the last 30 s.",
        "none",
        [(or_none(f"sum({of_projects(SILENT)})"), "ranks")],
        limits=BAD_FROM_ZERO,
    ),
    Listing(
        "Open incidents",
        "Findings of verdicts that are still open, with links to the run's page, the runbook and the debug board.",
        "none",
        "",
        [(open_incidents_named(PROJECTS), "")],
        INCIDENT_COLUMNS,
        width=FULL_WIDTH,
        links=INCIDENT_LINKS,
    ),
)

NUMERICS = (
    Chart(
        "NaN and Inf",
        "NaN and Inf elements in gradients per second, of runs that have any. Inf alone is an overflow; an operation "
        "produces NaN.",
        "cps",
        [(named(above_zero(rate("ammeter_nonfinite_values_total"))), RUN + " {{kind}}")],
    ),
    Chart(
        "Steps with NaN or Inf",
        "Steps per minute with a NaN or Inf in the gradients, of runs that have any.",
        "cpm",
        [(named(above_zero(rate("ammeter_nonfinite_steps_total", per_minute=True))), RUN)],
    ),
    Chart(
        "Overflow events",
        "Steps per minute in which GradScaler found an Inf or NaN, of runs that have any. A few at the start of a run "
        "are calibration.",
        "cpm",
        [(named(above_zero(rate("ammeter_overflow_events_total", per_minute=True))), RUN)],
    ),
    Chart(
        "Skipped steps in a row",
        "Five in a row after the start open an incident that pages: each skipped step halves the scale.",
        "none",
        [(named("ammeter_consecutive_skipped_steps"), RUN)],
        bars=True,
        limits=((None, "green"), (5, "red")),
    ),
)

RUNS = (
    Chart(
        "Runs by state",
        "Running runs, and the final states of runs that ended in the last five minutes.",
        "none",
        [(f"sum by (state) ({of_projects('ammeter_run_state')})", "{{state}}")],
    ),
    Chart(
        "Failures",
        "Runs per interval that ended by an exception or a signal, or without a final record.",
        "none",
        [(f"sum by (outcome) (increase(ammeter_fleet_runs_total{{{FAILED}}}[$__rate_interval]))", "{{outcome}}")],
    ),
    Chart(
        "Since the last step",
        "Time since the last step of each running training. A rising line is a stalled run: a ticket after a "
        "quarter of an hour, a page after an hour.",
        "s",
        [(named(while_running("time() - ammeter_run_last_step_timestamp_seconds")), RUN)],
        limits=((None, "green"), (900, "orange"), (3600, "red")),
    ),
    Chart(
        "Ranks reporting",
        "Share of the ranks of each running training that reported in the last 30 s.",
        "percentunit",
        [(named(while_running("ammeter_run_ranks_reporting / ammeter_run_world_size")), RUN)],
    ),
)

DEVICES = (
    Chart(
        "GPU utilization by node",
        "Share of time in which the GPUs of each node computed: the mean of the GPUs that train.",
        "percentunit",
        [(f"avg by (hostname) ({of_projects('ammeter_device_utilization_ratio')})", "{{hostname}}")],
        missing="no GPU readings: install ammeter[nvml] on the training hosts",
    ),
    Chart(
        "Device memory",
        "Maximum over ranks of torch's allocated and reserved memory, and maximum used memory of any device.",
        "bytes",
        [(named("ammeter_device_memory_bytes"), RUN + " {{kind}}")],
        missing="no run on a GPU",
    ),
    Chart(
        "Temperature",
        "The hottest GPU of each node. GPUs throttle above about 85 °C.",
        "celsius",
        [(f"max by (hostname) ({of_projects('ammeter_device_temperature_celsius')})", "{{hostname}}")],
        missing="no GPU readings",
        limits=((None, "green"), (85, "red")),
    ),
    Chart(
        "Power",
        "Power of the training GPUs of each node. Low power at full utilization: the GPUs wait for memory.",
        "watt",
        [(f"sum by (hostname) ({of_projects('ammeter_device_power_watts')})", "{{hostname}}")],
        missing="no GPU readings",
    ),
)

COLLECTOR = (
    Chart(
        "Batches received",
        "Batches per second by HTTP status of the response. Shippers retry after 429 and 503; other 4xx are faults.",
        "reqps",
        [(f"sum by (code) ({rate('ammeter_collector_ingest_requests_total')})", "{{code}}")],
        width=FULL_WIDTH,
    ),
    Chart(
        "Time to commit",
        "99th percentile of the time from a batch's last byte to its commit. It delays notifications by the same time.",
        "s",
        [(quantile("0.99", "ammeter_collector_ingest_duration_seconds", by=""), "p99")],
    ),
    Distribution(
        "Time to commit, distribution",
        "Batches per second by the time from their last byte to their commit.",
        "s",
        [(buckets("ammeter_collector_ingest_duration_seconds"), "{{le}}")],
    ),
    Chart(
        "Undelivered notifications",
        "Notifications to be delivered. Above 0 for minutes: a channel rejects them.",
        "none",
        [("max(ammeter_collector_outbox_pending)", "waiting")],
        limits=((None, "green"), (1, "orange")),
    ),
    Chart(
        "Judging delay",
        "Time since the oldest last judgement of a running run. About 30 s is usual; minutes mean that new "
        "faults send no notifications.",
        "s",
        [("min(ammeter_collector_judge_lag_seconds)", "lag")],
        limits=((None, "green"), (JUDGE_LAG_SECONDS, "red")),
    ),
    Chart(
        "Batches in the queue",
        "Batches that are received and not committed yet.",
        "none",
        [("sum(ammeter_collector_ingest_waiting)", "waiting")],
    ),
    Chart(
        "Memory of the collector",
        "Resident memory of each collector process.",
        "bytes",
        [("ammeter_collector_process_resident_memory_bytes", "{{instance}}")],
    ),
    Chart(
        "Free disk",
        "Free space on the disk of SQLite's database. The disk of PostgreSQL is not visible to the collector.",
        "bytes",
        [("min(ammeter_collector_storage_disk_free_bytes)", "free")],
        missing="no SQLite",
    ),
    Chart(
        "Database on disk",
        "Size of the collector's database.",
        "bytes",
        [("max(ammeter_collector_storage_bytes)", "database")],
    ),
)

BOARD = Board(
    name="on-call",
    title="Ammeter / On call",
    description="Current faults and their places: incidents, NaN, Inf, failures, silent runs, the collector itself.",
    variables=(),
    rows=(
        ("", TOP),
        ("NaN, Inf and overflow", NUMERICS),
        ("Runs", RUNS),
        ("Devices", DEVICES),
        ("The collector", COLLECTOR),
    ),
    folded=("Devices", "The collector"),
)
