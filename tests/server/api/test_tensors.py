from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.feeding import TENSORS, Stream, serving, train


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def test_each_tensor_has_its_latest_measured_value_and_the_step_of_it(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {}, {"grad.norm": {"embed.weight": 1.0, "head.weight": 2.0}})
    stream.send()
    stream.tell(1, {}, {"grad.norm": {"embed.weight": math.nan}})
    stream.tell(2, {})
    stream.send()
    items = client.get(f"/api/v1/runs/{stream.run}/tensors").json()["items"]
    assert [("embed.weight", "NaN", 1), ("head.weight", 2.0, 0)] == [
        (item["name"], item["value"], item["step"]) for item in items
    ]
    assert ([64, 16], "float32", 1024, "grad.norm", 0) == tuple(
        items[0][name] for name in ("shape", "dtype", "numel", "stat", "rank")
    )


def test_several_stats_stand_beside_each_other_and_come_in_pages(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 12)
    stream.send()
    asked: dict[str, Any] = {"stat": "grad.norm,grad.zeros", "page_size": 3}
    first = client.get(f"/api/v1/runs/{stream.run}/tensors", params=asked).json()
    token = first["next_page_token"]
    rest = client.get(
        f"/api/v1/runs/{stream.run}/tensors", params={**asked, "page_token": token, "page_size": 50}
    ).json()
    found = [(item["name"], item["stat"], item["step"]) for item in first["items"] + rest["items"]]
    wanted = [(tensor.name, stat, step) for tensor in TENSORS for stat, step in (("grad.norm", 12), ("grad.zeros", 10))]
    assert wanted == found
    assert rest["next_page_token"] is None


def test_the_newest_life_of_the_lowest_rank_speaks(client: httpx.Client) -> None:
    first = Stream(client, rank=1, world_size=2)
    train(first, 0, 1)
    first.send()
    second = Stream(client, run=first.run, rank=0, world_size=2)
    train(second, 0, 1)
    second.send()
    path = f"/api/v1/runs/{first.run}/tensors"
    assert {second.stream} == {item["stream"] for item in client.get(path).json()["items"]}
    assert {first.stream} == {item["stream"] for item in client.get(path, params={"rank": 1}).json()["items"]}


def test_a_stat_there_is_not_is_refused_with_those_there_are(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 1)
    stream.send()
    answer = client.get(f"/api/v1/runs/{stream.run}/tensors", params={"stat": "grad.mood"})
    assert 422 == answer.status_code
    assert answer.json()["detail"].startswith("stat is 'grad.mood'; use some of grad.norm, grad.absmax")
