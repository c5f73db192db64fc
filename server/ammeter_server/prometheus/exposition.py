"""Metric definitions and the Prometheus text format.

docs/metrics.md describes each metric.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Literal

END = b"# EOF\n"
"""Last line of a response in OpenMetrics format."""

MIN_EXPONENT_VALUE = 10**6
"""Numbers from this value on are written with an exponent, as Go's libraries do."""


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
        "Always 1; says what the run is",
    ),
    Metric("ammeter_run_state", "gauge", ("run", "state"), "1 for the state the run is in: running, ended or lost"),
    Metric("ammeter_run_start_timestamp_seconds", "gauge", _RUN, "When the run started"),
    Metric("ammeter_run_end_timestamp_seconds", "gauge", _RUN, "When the run ended; absent while it goes on"),
    Metric("ammeter_run_last_step_timestamp_seconds", "gauge", _RUN, "When the run's last step closed"),
    Metric("ammeter_run_step", "gauge", _RUN, "The run's last step"),
    Metric("ammeter_run_world_size", "gauge", _RUN, "Ranks the run was started with"),
    Metric("ammeter_run_ranks_reporting", "gauge", _RUN, "Ranks heard from in the last half minute"),
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
        "Share of sampled weights that an applied step did not change although it meant to",
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
        "Share of the eligible FLOPs in operators that could run in low precision and did not, or not well",
    ),
    Metric("ammeter_step_duration_seconds", "histogram", _RUN, "Wall time from one step's end to the next"),
    Metric(
        "ammeter_epoch_duration_seconds",
        "gauge",
        _RUN,
        "How long a pass over the data takes; absent where the run does not say its epochs",
    ),
    Metric("ammeter_samples_total", "counter", _RUN, "Samples trained on, of all ranks, as run.log said"),
    Metric(
        "ammeter_device_utilization_ratio",
        "gauge",
        _DEVICE,
        "Share of the time that the device computed, as NVML has it",
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
        "What the run has cost: its ranks' time, at the price of the device; absent without a price",
    ),
    Metric(
        "ammeter_cost_per_epoch_dollars",
        "gauge",
        _RUN,
        "What a pass over the data costs; absent where the run does not say its epochs",
    ),
    Metric("ammeter_last_validation_loss", "gauge", _RUN, "Validation loss that run.log said last"),
    Metric(
        "ammeter_checkpoint_saves_total",
        "counter",
        ("run", "outcome"),
        "Checkpoints saved: complete, or partial where something is missing that the run needs to go on",
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
        "How many times as fast as the baseline that the run names, at the steps of both",
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
        "By which share the last validation is worse than the baseline's at the same step; below 0 it is better",
    ),
    Metric(
        "ammeter_incident_active",
        "gauge",
        ("run", "project", "verdict", "severity"),
        "1 while the incident is open or acknowledged, 0 for five minutes after it closed",
    ),
    Metric("ammeter_fleet_runs_total", "counter", ("project", "outcome"), "Runs that are over, by how they ended"),
    Metric(
        "ammeter_fleet_validations_total",
        "counter",
        ("project", "outcome"),
        "Runs that are over and were held against a baseline's validation: held or drifted",
    ),
    Metric(
        "ammeter_fleet_times_total",
        "counter",
        ("project", "outcome"),
        "Runs that said how long they should take: expected where they were over by then, late from then on",
    ),
    Metric("ammeter_fleet_steps_total", "counter", ("project", "outcome"), "Steps of all runs, applied or skipped"),
    Metric(
        "ammeter_fleet_cost_dollars_total",
        "counter",
        ("project",),
        "What the runs have cost, at the prices when they ran",
    ),
    Metric(
        "ammeter_incidents_total",
        "counter",
        ("project", "verdict", "severity"),
        "Incidents opened, and tickets that became a page",
    ),
    Metric("ammeter_agent_overhead_ratio", "gauge", _RUN, "Share of the run's time that was spent inside Ammeter"),
    Metric("ammeter_agent_lost_records_total", "counter", ("run", "reason"), "Steps and events lost on the way"),
    Metric("ammeter_agent_journal_bytes", "gauge", _RUN, "Journal that was not delivered when last heard"),
)
"""Metrics of /metrics in output order. /metrics/self has those of process/self_metrics.py and PROCESS."""

PROCESS: tuple[Metric, ...] = (
    Metric("ammeter_collector_build_info", "gauge", ("version",), "Always 1; says which version answers"),
    Metric("ammeter_collector_storage_bytes", "gauge", (), "What the database takes on disk"),
    Metric(
        "ammeter_collector_storage_disk_bytes",
        "gauge",
        (),
        "Size of the disk that SQLite's database lies on; absent for PostgreSQL, whose disk is another machine's",
    ),
    Metric("ammeter_collector_storage_disk_free_bytes", "gauge", (), "Of it what this process may still fill"),
    Metric("ammeter_collector_outbox_pending", "gauge", (), "Notifications that are still to be delivered"),
    Metric("ammeter_collector_ingest_waiting", "gauge", (), "Batches that wait until they are committed"),
    Metric(
        "ammeter_collector_judge_lag_seconds",
        "gauge",
        (),
        "How long the run that waits longest has not been judged, or this process has looked at none; 30 is usual",
    ),
    Metric(
        "ammeter_collector_database_connections",
        "gauge",
        ("state",),
        "Connections to the database, those of scrapes of /metrics aside: used or idle",
    ),
    Metric("ammeter_collector_database_connections_limit", "gauge", (), "How many there can be"),
)


RunSamples = Mapping[str, str]
"""Text lines by metric name."""


@dataclass
class Exposition:
    """Samples as lines of text.

    Values that are not finite are omitted, because every comparison with NaN is false.
    """

    lines: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, value: float | str | None, *labels: str) -> None:
        """Adds one sample of a gauge or counter.

        None, and the strings "NaN" and "Infinity" that the tables store, are omitted.
        """
        if value is None or isinstance(value, str) or not math.isfinite(value):
            return
        self.lines.setdefault(name, []).append(_sample(name)(*map(_escaped, labels), _number(value)))

    def add_histogram(
        self, name: str, bounds: Sequence[float], counts: Sequence[int], total: float | None, *labels: str
    ) -> None:
        """Adds one histogram.

        Args:
            counts: The number of values between the bound before and each bound, then those above all bounds.
            total: The sum of all values; None omits the `_sum` line.
        """
        below = list(map(_number, accumulate(counts)))
        form = _histogram(name, tuple(bounds), total is not None)
        told = form(*map(_escaped, labels), *below, _number(total or 0))
        self.lines.setdefault(name, []).append(told)

    @property
    def told(self) -> RunSamples:
        """The lines added so far."""
        return {name: "".join(lines) for name, lines in self.lines.items()}


def text(several: Sequence[RunSamples], is_open: bool) -> Iterator[bytes]:
    """Renders the merged samples without OpenMetrics' end line, one metric at a time.

    Args:
        is_open: True for OpenMetrics, in which the family of a counter has no suffix `_total`.
    """
    for metric in (*METRICS, *PROCESS):
        lines = [told[metric.name] for told in several if metric.name in told]
        if lines:
            family = metric.name.removesuffix("_total") if is_open else metric.name
            head = f"# HELP {family} {metric.help}\n# TYPE {family} {metric.kind}\n"
            yield "".join([head, *lines]).encode()


@lru_cache
def _sample(name: str) -> Callable[..., str]:
    """Returns a formatter of one line, called with the label values and the value."""
    labels = _labels(_named(name))
    return f"{name}{labels} {{{len(_named(name).labels)}}}\n".format


@lru_cache
def _histogram(name: str, bounds: tuple[float, ...], has_total: bool) -> Callable[..., str]:
    """Returns a formatter of all lines of one histogram.

    Its arguments are the label values, the cumulative counts up to each bound and in all, and the sum.
    """
    metric = _named(name)
    first = len(metric.labels)
    marks = [*(f"{bound:g}" for bound in bounds), "+Inf"]
    lines = [f"{name}_bucket{_labels(metric, mark)} {{{first + place}}}\n" for place, mark in enumerate(marks)]
    if has_total:
        lines.append(f"{name}_sum{_labels(metric)} {{{first + len(marks)}}}\n")
    lines.append(f"{name}_count{_labels(metric)} {{{first + len(marks) - 1}}}\n")
    return "".join(lines).format


def _labels(metric: Metric, bound: str | None = None) -> str:
    """The label names with placeholders for their values; an empty string without labels."""
    places = {label: f"{{{place}}}" for place, label in enumerate(metric.labels)} | ({"le": bound} if bound else {})
    told = ",".join(f'{label}="{value}"' for label, value in sorted(places.items()))
    return f"{{{{{told}}}}}" if told else ""


@lru_cache
def _named(name: str) -> Metric:
    return next(metric for metric in (*METRICS, *PROCESS) if metric.name == name)


@lru_cache(1024)
def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    """Formats a number like Prometheus' own libraries."""
    if 0 <= value < MIN_EXPONENT_VALUE:
        return repr(float(value))
    said = repr(float(value))
    dot = said.find(".")
    if value < 0 or dot <= 6:
        return said
    mantissa = f"{said[0]}.{said[1:dot]}{said[dot + 1 :]}".rstrip("0.")
    return f"{mantissa}e+{dot - 1:02d}"
