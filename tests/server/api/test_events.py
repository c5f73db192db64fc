from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.server.feeding import Stream, break_down, serving, train


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


@pytest.fixture
def path(client: httpx.Client) -> str:
    stream = Stream(client)
    train(stream, 0, 9)
    break_down(stream, 10, 13)
    stream.send()
    other = Stream(client, run=stream.run, rank=1)
    train(other, 0, 3)
    other.say("scaler.growth", 3, **{"from": 1.0, "to": 2.0})
    other.send()
    return f"/api/v1/runs/{stream.run}/events"


def test_events_come_newest_first_with_rank_step_time_and_data(client: httpx.Client, path: str) -> None:
    newest = client.get(path).json()["items"][0]
    assert ("scaler.backoff", 13, 0) == (newest["name"], newest["step"], newest["rank"])
    assert {"from": 8192.0, "to": 4096.0} == newest["data"]
    assert "2025-10-09T08:53:21.300Z" == newest["time"]


def test_every_event_is_on_exactly_one_page(client: httpx.Client, path: str) -> None:
    everything = [event["id"] for event in client.get(path).json()["items"]]
    paged: list[str] = []
    token = None
    while True:
        page = client.get(path, params={"page_size": 4, **({"page_token": token} if token else {})}).json()
        paged += [event["id"] for event in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert 17 == len(everything)
    assert everything == paged


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"name": "step.skipped"}, 4),
        ({"name": "step.skipped,scaler.backoff"}, 8),
        ({"from": 12}, 6),
        ({"from": 11, "to": 12}, 6),
        ({"rank": 1}, 3),
        ({"rank": "0,1"}, 17),
        ({"name": "scaler.*"}, 7),
        ({"name": "scaler.*,step.skipped"}, 11),
        ({"name": "scal*"}, 0),
        ({"name": "%.*"}, 0),
        ({"since": "2025-10-09T08:53:21.300Z"}, 3),
        ({"since": "2025-10-09T08:53:21.2Z", "until": "2025-10-09T08:53:21.200Z"}, 3),
        ({"until": "2025-10-09T08:53:20.299Z"}, 4),
        ({"name": "no.such"}, 0),
    ],
)
def test_events_are_chosen_by_name_step_and_rank(
    client: httpx.Client, path: str, asked: dict[str, str], expected: int
) -> None:
    assert expected == len(client.get(path, params=asked).json()["items"])


def test_events_of_a_run_that_is_not_there_are_a_404(client: httpx.Client) -> None:
    assert 404 == client.get("/api/v1/runs/nothing/events").status_code
