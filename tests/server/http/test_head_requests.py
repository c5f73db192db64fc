from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.feeding import Stream, serving, train

PATHS = (
    "/",
    "/runs/{run}",
    "/livez",
    "/readyz",
    "/openapi.json",
    "/metrics/self",
    "/runbooks/run-lost",
    "/static/api.js",
    "/api/v1/runs/{run}/series?names=loss",
    "/api/v1/rules",
    "/api/v1/runs/nobody",
    "/no/such/page",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, str]]:
    with serving(tmp_path_factory.mktemp("head")) as client:
        stream = Stream(client)
        train(stream, 0, 3)
        stream.send()
        yield client, stream.run


@pytest.mark.parametrize("path", PATHS)
def test_head_says_what_get_does_without_the_body(place: tuple[httpx.Client, str], path: str) -> None:
    client, run = place
    got, headed = (client.request(method, path.format(run=run)) for method in ("GET", "HEAD"))
    assert (got.status_code, b"") == (headed.status_code, headed.content)
    own = {"date", "content-length"} if path == "/metrics/self" else {"date"}
    assert {name: value for name, value in got.headers.items() if name not in own} == {
        name: value for name, value in headed.headers.items() if name not in own
    }


def test_head_where_only_post_answers_is_a_405(place: tuple[httpx.Client, str]) -> None:
    assert 405 == place[0].head("/api/v1/session").status_code


def test_head_tells_nobody_without_a_token_more_than_get(tmp_path: Path) -> None:
    with serving(tmp_path, token="f" * 40) as client:
        assert [401, 401] == [client.request(method, "/api/v1/runs").status_code for method in ("GET", "HEAD")]
