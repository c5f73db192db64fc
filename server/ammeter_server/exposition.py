"""The metrics there are, by name, and how values become Prometheus' text. docs/metrics.md describes each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fastapi import Response
from prometheus_client import Metric as Family
from prometheus_client import disable_created_metrics
from prometheus_client.exposition import choose_encoder

disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Metric:
    """What a metric is: its name as people query it, its kind, its labels and what it says."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str


_RUN = ("run",)

METRICS: tuple[Metric, ...] = (
    Metric(
        "ammeter_run_info",
        "gauge",
        ("run", "project", "precision", "torch_version", "device_model"),
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
    Metric("ammeter_last_loss", "gauge", _RUN, "Training loss of the last step"),
    Metric("ammeter_step_duration_seconds", "histogram", _RUN, "Wall time from one step's end to the next"),
    Metric("ammeter_samples_total", "counter", _RUN, "Samples trained on, of all ranks, as run.log said"),
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
    Metric("ammeter_fleet_steps_total", "counter", ("project", "outcome"), "Steps of all runs, applied or skipped"),
    Metric("ammeter_incidents_total", "counter", ("project", "verdict", "severity"), "Incidents opened"),
    Metric("ammeter_agent_overhead_ratio", "gauge", _RUN, "Share of the run's time that was spent inside Ammeter"),
    Metric("ammeter_agent_lost_records_total", "counter", ("run", "reason"), "Steps and events lost on the way"),
    Metric("ammeter_agent_journal_bytes", "gauge", _RUN, "Journal that was not delivered when last heard"),
)
"""Everything on /metrics, in the order it is shown. /metrics/self is meters.py and PROCESS."""

PROCESS: tuple[Metric, ...] = (
    Metric("ammeter_collector_build_info", "gauge", ("version",), "Always 1; says which version answers"),
    Metric("ammeter_collector_storage_bytes", "gauge", (), "What the database takes on disk"),
    Metric("ammeter_collector_outbox_pending", "gauge", (), "Notifications that are still to be delivered"),
)


@dataclass
class Exposition:
    """Families being filled. Values that are no finite number are left out: comparisons are silent on NaN."""

    metrics: Sequence[Metric] = METRICS
    families: dict[str, Family] = field(default_factory=dict)

    def add(self, name: str, value: float | str | None, *labels: str) -> None:
        """One sample of a gauge or counter. None and "NaN", "Infinity" as the tables hold them are left out."""
        if value is None or isinstance(value, str) or not math.isfinite(value):
            return
        metric, family = self._family(name)
        family.add_sample(name, dict(zip(metric.labels, labels, strict=True)), value)

    def add_histogram(
        self, name: str, bounds: Iterable[float], counts: Sequence[int], total: float | None, *labels: str
    ) -> None:
        """counts: per bound those up to it and above the one before, then those above all. total: their sum."""
        metric, family = self._family(name)
        named = dict(zip(metric.labels, labels, strict=True))
        below = 0
        for bound, count in zip([*map(_bound, bounds), "+Inf"], counts, strict=True):
            below += count
            family.add_sample(f"{name}_bucket", {**named, "le": bound}, below)
        if total is not None:
            family.add_sample(f"{name}_sum", named, total)
        family.add_sample(f"{name}_count", named, below)

    def collect(self) -> Iterator[Family]:
        """The families in the order of the list, as a registry gives them."""
        yield from (self.families[metric.name] for metric in self.metrics if metric.name in self.families)

    def _family(self, name: str) -> tuple[Metric, Family]:
        metric = next(each for each in self.metrics if each.name == name)
        if name not in self.families:
            self.families[name] = Family(name.removesuffix("_total"), metric.help, metric.kind)
        return metric, self.families[name]


class Collected:
    """What an encoder asks: one collect(), from several sources."""

    def __init__(self, *families: Iterable[Family]) -> None:
        self.families = families

    def collect(self) -> Iterator[Family]:
        for several in self.families:
            yield from several


def exposed(families: Iterable[Family], accept: str) -> Response:
    """The answer in the format that the scraper accepts."""
    encode, content_type = choose_encoder(accept)
    return Response(encode(Collected(families)), headers={"Content-Type": content_type})


def _bound(bound: float) -> str:
    return f"{bound:g}"
