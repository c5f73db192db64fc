from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter_server.db import migrations
from ammeter_server.http.security_headers import HEADERS
from tests.server.feeding import serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("app")) as client:
        yield client


@pytest.mark.parametrize(
    ("status", "method", "path"),
    [
        (404, "GET", "/no/such/page"),
        (404, "GET", "/static/no-such.js"),
        (404, "GET", "/api/v1/runs/no-such-run"),
        (405, "DELETE", "/livez"),
        (405, "PUT", "/api/v1/runs"),
        (415, "POST", f"/api/v1/runs/{'0' * 8}-0000-4000-8000-{'0' * 12}/streams/{'0' * 32}/frames?offset=0&end=1"),
        (422, "GET", "/api/v1/runs?page_size=lots"),
        (415, "POST", "/api/v1/session"),
    ],
)
def test_every_error_is_a_problem_that_says_what_was_wrong(
    client: httpx.Client, status: int, method: str, path: str
) -> None:
    answer = client.request(method, path)
    body = answer.json()
    assert (status, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert (status, "about:blank") == (body["status"], body["type"])
    assert body["title"]
    assert len(body["detail"]) > 10


@pytest.mark.parametrize("path", ["/", "/livez", "/no/such/page", "/static/api.js", "/api/v1/runs", "/metrics"])
def test_every_answer_carries_the_security_headers(client: httpx.Client, path: str) -> None:
    answer = client.get(path)
    assert HEADERS == {name: answer.headers.get(name) for name in HEADERS}
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_a_fault_of_ours_is_a_problem_with_the_headers_and_without_the_reason(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        with sqlite3.connect(tmp_path / "collector.db") as connection:
            connection.execute("ALTER TABLE runs RENAME TO others")
        connection.close()
        answer = client.get("/api/v1/runs")
    assert (500, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert "no database" not in answer.text
    assert HEADERS == {name: answer.headers.get(name) for name in HEADERS}


def test_live_and_ready_say_so(client: httpx.Client) -> None:
    assert {"status": "alive"} == client.get("/livez").json()
    assert {"status": "ready", "database": migrations.newest()} == client.get("/readyz").json()


def test_a_database_of_another_shape_is_not_ready(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        with sqlite3.connect(tmp_path / "collector.db") as connection:
            connection.execute("UPDATE alembic_version SET version_num = '0001'")
        connection.close()
        answer = client.get("/readyz")
    assert 503 == answer.status_code
    assert "has schema 0001" in answer.json()["detail"]
    assert "ammeter-server migrate" in answer.json()["detail"]


@pytest.mark.parametrize(
    "route",
    [
        "GET /api/v1/runs",
        "GET /api/v1/runs/{run}",
        "GET /api/v1/runs/{run}/series",
        "GET /api/v1/runs/{run}/tensors",
        "GET /api/v1/runs/{run}/events",
        "GET /api/v1/runs/{run}/incidents",
        "GET /api/v1/runs/{run}/live",
        "GET /api/v1/runs/{run}/spectrum",
        "GET /api/v1/runs/{run}/what-if",
        "GET /api/v1/runs/{run}/tensors/matrix",
        "GET /api/v1/runs/{run}/compare/{baseline}",
        "POST /api/v1/runs/{run}/streams/{stream}/frames",
        "GET /api/v1/incidents",
        "POST /api/v1/incidents/{incident}/acknowledge",
        "POST /api/v1/incidents/{incident}/close",
        "GET /api/v1/rules",
        "GET /api/v1/dashboards/{name}",
        "POST /api/v1/session",
        "DELETE /api/v1/session",
        "GET /metrics",
        "GET /metrics/self",
        "GET /livez",
        "GET /readyz",
        "GET /runbooks/",
        "GET /runbooks/{verdict}",
    ],
)
def test_the_api_describes_its_routes(client: httpx.Client, route: str) -> None:
    method, path = route.split()
    operation = client.get("/openapi.json").json()["paths"][path][method.lower()]
    assert operation["summary"]
