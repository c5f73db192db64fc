"""Directives reach each live process of a run once, with the response to a batch. On both databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.databases import postgresql
from tests.server.feeding import Stream, serving, train, wait_until


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    with postgresql() if request.param == "postgresql" else nullcontext("") as url, serving(tmp_path, url) as client:
        client.headers["X-Ammeter-Request"] = "test"
        yield client


def ask(client: httpx.Client, run: str, steps: int = 7) -> httpx.Response:
    return client.post(f"/api/v1/runs/{run}/directives", params={"steps": steps})


def listed(client: httpx.Client, run: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get(f"/api/v1/runs/{run}/directives").json()["items"]
    return items


def received(stream: Stream) -> list[dict[str, Any]]:
    """The directives in the response to a further step."""
    step = stream.offset
    stream.tell(step, {"loss": 1.0})
    directives: list[dict[str, Any]] = stream.send().json()["directives"]
    return directives


def test_each_rank_of_a_live_run_receives_a_directive_once(client: httpx.Client) -> None:
    first = Stream(client, world_size=2)
    second = Stream(client, run=first.run, rank=1, world_size=2, begin=first.begin)
    other = Stream(client)
    for stream in (first, second, other):
        train(stream, 0, 3)
        stream.send()
    answer = ask(client, first.run)
    window = [{"id": answer.json()["items"][0]["id"], "arm": "origin", "steps": 7}]
    assert (200, 2, 0) == (answer.status_code, *(answer.json()["items"][0][key] for key in ("ranks", "delivered_to")))
    assert window == wait_until(lambda: received(first))
    assert [(1, True)] == [(item["delivered_to"], item["delivered"] is not None) for item in listed(client, first.run)]
    assert window == wait_until(lambda: received(second))
    assert [] == [directive for stream in (first, second, other) for _ in range(3) for directive in received(stream)]
    (done,) = listed(client, first.run)
    assert (7, "anybody", 2) == (done["steps"], done["asked_by"], done["delivered_to"])
    assert "run.asked" in [record["action"] for record in client.get("/api/v1/audit").json()["items"]]


def test_a_run_that_has_ended_is_not_asked(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    stream.bye(3)
    stream.send()
    wait_until(lambda: "ended" == client.get(f"/api/v1/runs/{stream.run}").json()["state"])
    assert 409 == ask(client, stream.run).status_code
    assert 404 == ask(client, "nobody").status_code


def test_wrong_and_too_many_directives_are_refused(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send()
    assert 422 == ask(client, stream.run, steps=101).status_code
    for _ in range(8):
        assert 200 == ask(client, stream.run).status_code
    assert 409 == ask(client, stream.run).status_code
    del client.headers["X-Ammeter-Request"]
    assert 403 == ask(client, stream.run).status_code
