"""A receiver of OTLP over HTTP that keeps what it gets."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.parts import library


class Receiver(ThreadingHTTPServer):
    """Answers 200, or `status`; metrics, logs and traces are the requests that it accepted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metrics: list[Any] = []
        self.logs: list[Any] = []
        self.traces: list[Any] = []
        self.status = 200
        self.largest = 0
        """Bytes of the largest request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def points(self) -> Iterator[tuple[dict[str, Any], Any, Any]]:
        """Yields (resource attributes, metric, point) in the order of arrival."""
        for request in self.metrics:
            for resource in request.resource_metrics:
                facts = attributes(resource.resource.attributes)
                for metric in resource.scope_metrics[0].metrics:
                    for point in getattr(metric, metric.WhichOneof("data")).data_points:
                        yield facts, metric, point

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.traces
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def records(self) -> list[Any]:
        return [
            record
            for request in self.logs
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]


def attributes(pairs: Any) -> dict[str, Any]:
    """The attributes with one value each."""
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        thread.join()
        receiver.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        if self.server.status == 200:
            self.server.largest = max(self.server.largest, len(body))
            kept, kind = {
                "/v1/metrics": (self.server.metrics, "metrics"),
                "/v1/logs": (self.server.logs, "logs"),
                "/v1/traces": (self.server.traces, "trace"),
            }[self.path]
            service = library(f"opentelemetry.proto.collector.{kind}.v1.{kind}_service_pb2")
            kept.append(getattr(service, f"Export{kind.title()}ServiceRequest").FromString(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...
