"""Sends points and log records through OpenTelemetry's exporters, in requests of a limited size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice
from typing import Any

import numpy as np

from ammeter._version import __version__
from ammeter.export.errors import ExportFailed, library
from ammeter.export.otlp.logs import Record
from ammeter.export.otlp.metrics import Description, describe, step_of
from ammeter.recorded.recorded_run import Section, Stream
from ammeter.recorded.signal_names import Signal
from ammeter.wire.columns import Mask

BATCH_POINTS, BATCH_LOGS = 10_000, 500
"""Points and log records per request: about 2 MB, far below the 20 MiB that OpenTelemetry's Collector accepts."""

SCOPE = "ammeter"


class Sender:
    """Sends the parts of one run.

    Attributes:
        points: Number of points that were accepted.
        logs: Number of log records that were accepted.
    """

    def __init__(self, url: str) -> None:
        self._metrics, self._logs, self._api, self._resources, scopes, self._context, self._traces, self._spans = (
            library(
                "otlp",
                "opentelemetry.sdk.metrics.export",
                "opentelemetry.sdk._logs",
                "opentelemetry._logs",
                "opentelemetry.sdk.resources",
                "opentelemetry.sdk.util.instrumentation",
                "opentelemetry.trace.propagation.tracecontext",
                "opentelemetry.trace",
                "opentelemetry.sdk.trace",
            )
        )
        exporters = "opentelemetry.exporter.otlp.proto.http"
        metric_exporter, log_exporter, span_exporter = library(
            "otlp", f"{exporters}.metric_exporter", f"{exporters}._log_exporter", f"{exporters}.trace_exporter"
        )
        if not url.startswith(("http://", "https://")):
            raise ExportFailed(f"{url!r} is not the URL of an OTLP receiver; use one such as http://localhost:4318")
        self._url = url.rstrip("/")
        self._scope = scopes.InstrumentationScope(SCOPE, __version__)
        self._metric_exporter = metric_exporter.OTLPMetricExporter(endpoint=f"{self._url}/v1/metrics")
        self._log_exporter = log_exporter.OTLPLogExporter(endpoint=f"{self._url}/v1/logs")
        self._span_exporter = span_exporter.OTLPSpanExporter(endpoint=f"{self._url}/v1/traces")
        self._waiting: list[Any] = []
        self._waiting_points = self.points = self.logs = 0

    def add(self, section: Section, signals: Iterable[Signal]) -> None:
        """Sends the measured values of a section, and the number of each row."""
        stream = section.stream
        self._add(step_of(stream), section, section.steps, np.ones(len(section), np.bool_))
        for signal in signals:
            if signal.name in section.columns:
                self._add(describe(signal, stream), section, section.columns[signal.name], section.masks[signal.name])

    def flush(self, stream: Stream) -> None:
        """Sends the points that wait; they are all of this stream."""
        if not self._waiting:
            return
        scope = self._metrics.ScopeMetrics(self._scope, self._waiting, "")
        resource = self._metrics.ResourceMetrics(self._resource(stream), [scope], "")
        result = self._metric_exporter.export(self._metrics.MetricsData([resource]))
        self._check(result is self._metrics.MetricExportResult.SUCCESS)
        self.points += self._waiting_points
        self._waiting, self._waiting_points = [], 0

    def send(self, records: Iterator[Record], stream: Stream) -> None:
        """Sends log records of a stream."""
        resource, context = self._resource(stream), self._trace(stream)
        while batch := [self._log(record, resource, context) for record in islice(records, BATCH_LOGS)]:
            self._check(self._log_exporter.export(batch).name == "SUCCESS")
            self.logs += len(batch)

    def trace(self, stream: Stream, end: int) -> None:
        """Sends a process of the training as a span, below the one that started it, else as the root of a trace.

        Args:
            end: time of its last row, in ns.
        """
        hello, ended = stream.hello, stream.scan.ended
        above = self._traces.get_current_span(self._trace(stream)).get_span_context()
        parent = above if above.is_valid else None
        trace = parent.trace_id if parent else _id(hello.run, 16)
        span = self._spans.ReadableSpan(
            "ammeter.training",
            context=self._traces.SpanContext(trace, _id(hello.stream, 8), False, self._traces.TraceFlags(1)),
            parent=parent,
            resource=self._resource(stream),
            attributes={"ammeter.rank": hello.rank, "ammeter.steps": stream.scan.rows, "ammeter.ended": ended or ""},
            kind=self._traces.SpanKind.INTERNAL,
            status=self._status(ended),
            start_time=hello.started,
            end_time=max(end, hello.started),
            instrumentation_scope=self._scope,
        )
        self._check(self._span_exporter.export([span]).name == "SUCCESS")

    def _status(self, ended: str | None) -> Any:
        """Returns that of a span: an error if an exception or a signal ended the process, or it was lost."""
        codes = self._traces.StatusCode
        if ended is None:
            return self._traces.Status(codes.UNSET)
        has_failed = ended in ("exception", "signal", "lost")
        return self._traces.Status(codes.ERROR, ended) if has_failed else self._traces.Status(codes.OK)

    def close(self) -> None:
        """Ends the connections."""
        self._metric_exporter.shutdown()
        self._log_exporter.shutdown()
        self._span_exporter.shutdown()

    def _add(self, metric: Description, section: Section, column: Any, mask: Mask) -> None:
        started = section.stream.hello.started
        points = [
            self._metrics.NumberDataPoint(metric.attributes, started, time, value)
            for time, value in zip(section.times[mask].tolist(), column[mask].tolist(), strict=True)
        ]
        cumulative = self._metrics.AggregationTemporality.CUMULATIVE
        data = self._metrics.Sum(points, cumulative, False) if metric.adds_up else self._metrics.Gauge(points)
        self._waiting.append(self._metrics.Metric(metric.name, metric.meaning, metric.unit, data))
        self._waiting_points += len(points)
        if self._waiting_points >= BATCH_POINTS:
            self.flush(section.stream)

    def _log(self, record: Record, resource: Any, context: Any) -> Any:
        severity = self._api.SeverityNumber[record["severity"]]
        arguments = {name: value for name, value in record.items() if name != "severity"}
        log = self._api.LogRecord(
            **arguments, severity_number=severity, severity_text=record["severity"], context=context
        )
        return self._logs.ReadableLogRecord(log, resource, self._scope)

    def _resource(self, stream: Stream) -> Any:
        hello = stream.hello
        facts = {
            "service.name": hello.project,
            "service.instance.id": hello.stream,
            "host.name": hello.host,
            "process.pid": hello.pid,
            "ammeter.run.id": hello.run,
            "ammeter.run.name": hello.name,
        }
        return self._resources.Resource({name: fact for name, fact in facts.items() if fact})

    def _trace(self, stream: Stream) -> Any:
        """Returns the trace that the training belongs to, if its process was started with TRACEPARENT."""
        carrier = {"traceparent": stream.hello.environment.get("traceparent", "")}
        return self._context.TraceContextTextMapPropagator().extract(carrier)

    def _check(self, accepted: bool) -> None:
        if not accepted:
            raise ExportFailed(
                f"{self._url} did not accept a request; the reason is above. Before it, {self.points} points and"
                f" {self.logs} log records were sent; a second export sends them again"
            )


def _id(name: str, size: int) -> int:
    """Returns an id of a trace or span that is the same in each export of the run, and not 0."""
    return int.from_bytes(sha256(name.encode()).digest()[:size], "big") or 1
