"""A tracking server of MLflow that keeps the metrics it gets, with the part of its REST API that an export uses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API = "/api/2.0/mlflow/"


class TrackingServer(ThreadingHTTPServer):
    """metrics: every metric of every batch; calls: the names of the calls, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.metrics: list[dict[str, Any]] = []
        self.calls: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, call: str, sent: dict[str, Any]) -> dict[str, Any] | None:
        """The answer to a call; None for what does not exist."""
        self.calls.append(call)
        info = {
            "run_id": "a1",
            "run_uuid": "a1",
            "experiment_id": "1",
            "status": "RUNNING",
            "artifact_uri": "file:///a",
        }
        answers: dict[str, dict[str, Any]] = {
            "experiments/create": {"experiment_id": "1"},
            "runs/search": {},
            "runs/create": {"run": {"info": info, "data": {}}},
            "runs/get": {"run": {"info": info, "data": {}}},
            "runs/log-batch": {},
            "runs/set-tag": {},
            "runs/update": {"run_info": info},
        }
        self.metrics += sent.get("metrics", [])
        return answers.get(call)


@contextmanager
def tracking() -> Iterator[TrackingServer]:
    server = TrackingServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: TrackingServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.answer(self.path.partition("?")[0].removeprefix(API), json.loads(body or b"{}"))
        missing = {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "there is none"}
        text = json.dumps(missing if answer is None else answer).encode()
        self.send_response(404 if answer is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: object) -> None: ...
