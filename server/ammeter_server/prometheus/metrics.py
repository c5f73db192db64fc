"""Definitions of all metrics; docs/metrics.md describes each.

METRICS are those of /metrics in output order. /metrics/self has PROCESS_METRICS and those of process/self_metrics.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """Definition of one metric: name in queries, kind, label names and help text."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str


_RUN = ("run",)
_DEVICE = ("run", "hostname", "device", "gpu", "UUID")
"""The last four labels have the names of dcgm-exporter, except for its `Hostname`."""

METRICS: tuple[Metric, ...] = (
    Metric(
        "ammeter_run_info",
        "gauge",
        ("run", "name", "project", "precision", "torch_version", "device_model"),
        "Always 1; describes the run",
    ),
    Metric("ammeter_run_state", "gauge", ("run", "state"), "1 for the state of the run: running, ended or lost"),
    Metric("ammeter_run_start_timestamp_seconds", "gauge", _RUN, "When the run started"),
    Metric("ammeter_run_end_timestamp_seconds", "gauge", _RUN, "When the run ended; absent while it runs"),
    Metric("ammeter_run_last_step_timestamp_seconds", "gauge", _RUN, "When the run's last step closed"),
    Metric("ammeter_run_step", "gauge", _RUN, "The run's last step"),
    Metric("ammeter_run_world_size", "gauge", _RUN, "Ranks the run was started with"),
    Metric("ammeter_run_ranks_reporting", "gauge", _RUN, "Ranks that sent something in the last half minute"),
    Metric("ammeter_steps_total", "counter", ("run", "outcome"), "Attempts of the optimizer: applied or skipped"),
    Metric("ammeter_scaler_scale", "gauge", _RUN, "Loss scale of the last step"),
    Metric(
        "ammeter_scaler_headroom_doublings",
        "gauge",
        _RUN,
        "Doublings of the loss scale until the largest scaled gradient passes 65504, float16's largest number",
    ),
    Metric(
        "ammeter_scaler_scale_changes_total", "counter", ("run", "direction"), "Times the loss scale went up or down"
    ),
    Metric("ammeter_overflow_events_total", "counter", _RUN, "Steps in which GradScaler found an Inf or NaN"),
    Metric("ammeter_consecutive_skipped_steps", "gauge", _RUN, "Skipped steps in a row up to the last step"),
    Metric("ammeter_nonfinite_values_total", "counter", ("run", "kind"), "NaN and Inf elements seen in gradients"),
    Metric("ammeter_nonfinite_steps_total", "counter", _RUN, "Steps with a NaN or Inf in the gradients"),
    Metric("ammeter_last_nonfinite_timestamp_seconds", "gauge", _RUN, "When a gradient was last not finite"),
    Metric("ammeter_grad_norm", "histogram", _RUN, "L2 norm of all gradients per step, unscaled; finite ones"),
    Metric("ammeter_last_grad_norm", "gauge", _RUN, "L2 norm of all gradients in the last step, unscaled"),
    Metric(
        "ammeter_grad_underflow_ratio",
        "gauge",
        _RUN,
        "Share of gradient elements that are zero or subnormal in float16 while scaled, when last sampled",
    ),
    Metric(
        "ammeter_lost_update_ratio",
        "gauge",
        _RUN,
        "Share of sampled weights that an applied step should have changed and did not",
    ),
    Metric("ammeter_update_to_weight_ratio", "gauge", _RUN, "Norm of the last sampled update over that of the weights"),
    Metric("ammeter_last_loss", "gauge", _RUN, "Training loss of the last step"),
    Metric(
        "ammeter_low_precision_flops_ratio",
        "gauge",
        _RUN,
        "Share of the eligible FLOPs below autocast that ran in float16 or bfloat16, when last sampled",
    ),
    Metric(
        "ammeter_kernel_fallback_flops_ratio",
        "gauge",
        ("run", "op", "reason"),
        "Share of the eligible FLOPs in operators that could run in low precision and did not, or ran inefficiently",
    ),
    Metric(
        "ammeter_operator_seconds",
        "gauge",
        ("run", "op", "dtype"),
        "Time in an operator in a typical sampled forward pass, under observation; dtype is that of its result",
    ),
    Metric("ammeter_step_duration_seconds", "histogram", _RUN, "Wall time from one step's end to the next"),
    Metric(
        "ammeter_epoch_duration_seconds",
        "gauge",
        _RUN,
        "Duration of a pass over the data; absent if the run does not log its epochs",
    ),
    Metric("ammeter_samples_total", "counter", _RUN, "Samples trained on, of all ranks, from run.log"),
    Metric(
        "ammeter_device_utilization_ratio",
        "gauge",
        _DEVICE,
        "Share of the time that the device computed, from NVML",
    ),
    Metric(
        "ammeter_device_memory_bytes",
        "gauge",
        ("run", "kind"),
        "Device memory: allocated and reserved by torch, the most of any rank; used, the most of any device",
    ),
    Metric("ammeter_device_power_watts", "gauge", _DEVICE, "Power that the device draws"),
    Metric("ammeter_device_temperature_celsius", "gauge", _DEVICE, "Temperature of the device"),
    Metric(
        "ammeter_run_cost_dollars",
        "gauge",
        _RUN,
        "Cost of the run: its ranks' time, at the price of the device; absent without a price",
    ),
    Metric(
        "ammeter_cost_per_epoch_dollars",
        "gauge",
        _RUN,
        "Cost of a pass over the data; absent if the run does not log its epochs",
    ),
    Metric("ammeter_last_validation_loss", "gauge", _RUN, "Last validation loss from run.log"),
    Metric(
        "ammeter_checkpoint_saves_total",
        "counter",
        ("run", "outcome"),
        "Checkpoints saved: complete, or partial where something is missing that the run needs to continue",
    ),
    Metric(
        "ammeter_checkpoint_restores_total",
        "counter",
        ("run", "outcome"),
        "Checkpoints read back: passed, or failed where one is broken or lacks something; absent where none was read",
    ),
    Metric(
        "ammeter_checkpoint_last_timestamp_seconds",
        "gauge",
        _RUN,
        "When the last complete checkpoint was saved; absent before the first",
    ),
    Metric(
        "ammeter_speedup_vs_baseline_ratio",
        "gauge",
        _RUN,
        "Speed relative to the baseline that the run names, at the steps of both",
    ),
    Metric(
        "ammeter_memory_vs_baseline_ratio",
        "gauge",
        _RUN,
        "Peak of the device memory in tensors over that of the baseline that the run names",
    ),
    Metric(
        "ammeter_validation_delta_ratio",
        "gauge",
        _RUN,
        "Share by which the last validation is worse than the baseline's at the same step; below 0 it is better",
    ),
    Metric(
        "ammeter_run_baseline_info",
        "gauge",
        ("run", "baseline", "baseline_precision"),
        "Always 1; the run that the run was compared with, and its precision",
    ),
    Metric(
        "ammeter_incident_active",
        "gauge",
        ("run", "project", "verdict", "severity"),
        "1 while the incident is open or acknowledged, 0 for five minutes after it closed",
    ),
    Metric("ammeter_fleet_runs_total", "counter", ("project", "outcome"), "Runs that have ended, by outcome"),
    Metric(
        "ammeter_fleet_validations_total",
        "counter",
        ("project", "outcome"),
        "Runs that have ended and were compared with a baseline's validation: held or drifted",
    ),
    Metric(
        "ammeter_fleet_times_total",
        "counter",
        ("project", "outcome"),
        "Runs with an expected duration: expected if they ended within it, else late",
    ),
    Metric("ammeter_fleet_steps_total", "counter", ("project", "outcome"), "Steps of all runs, applied or skipped"),
    Metric(
        "ammeter_fleet_cost_dollars_total",
        "counter",
        ("project",),
        "Cost of the runs, at the prices when they ran",
    ),
    Metric(
        "ammeter_incidents_total",
        "counter",
        ("project", "verdict", "severity"),
        "Incidents opened, and tickets that became a page",
    ),
    Metric("ammeter_agent_overhead_ratio", "gauge", _RUN, "Share of the run's time that Ammeter used"),
    Metric("ammeter_verdicts_not_judged", "gauge", _RUN, "Verdicts that too few readings leave open"),
    Metric(
        "ammeter_agent_lost_records_total",
        "counter",
        ("run", "reason"),
        "Steps and events lost before storage",
    ),
    Metric("ammeter_agent_journal_bytes", "gauge", _RUN, "Journal that was not delivered at the last contact"),
)
PROCESS_METRICS: tuple[Metric, ...] = (
    Metric("ammeter_collector_build_info", "gauge", ("version",), "Always 1; has the version of the collector"),
    Metric("ammeter_collector_storage_bytes", "gauge", (), "Size of the database on disk"),
    Metric("ammeter_collector_address_info", "gauge", ("url",), "Always 1; has the address of the page for people"),
    Metric(
        "ammeter_collector_storage_disk_bytes",
        "gauge",
        (),
        "Size of the disk with SQLite's database; absent for PostgreSQL, which runs on another machine",
    ),
    Metric("ammeter_collector_storage_disk_free_bytes", "gauge", (), "Free space on that disk for this process"),
    Metric("ammeter_collector_outbox_pending", "gauge", (), "Notifications that are still to be delivered"),
    Metric("ammeter_collector_ingest_waiting", "gauge", (), "Batches that wait until they are committed"),
    Metric(
        "ammeter_collector_verdict_delay_seconds",
        "gauge",
        (),
        "Time for which committed steps may wait for their verdicts because this process is busy",
    ),
    Metric(
        "ammeter_collector_judge_lag_seconds",
        "gauge",
        (),
        "Longest time since a run, or since any run by this process, was judged; 30 is usual",
    ),
    Metric(
        "ammeter_collector_database_connections",
        "gauge",
        ("state",),
        "Connections to the database without those of scrapes of /metrics: used or idle",
    ),
    Metric("ammeter_collector_database_connections_limit", "gauge", (), "Maximum number of database connections"),
)
