"""Groups of runs with several seeds, compared by the collector on both databases, and by the agent's command there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.__main__ import main
from tests.server.databases import postgresql
from tests.server.feeding import Stream, serving


@pytest.fixture(params=["sqlite", "postgresql"], scope="module")
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("collector")
    if request.param == "sqlite":
        with serving(folder) as client:
            fill(client)
            yield client
        return
    with postgresql() as url, serving(folder, url) as client:
        fill(client)
        yield client


def fill(client: httpx.Client) -> None:
    for seed in range(4):
        train(client, "new", seed, 1.0)
        train(client, "old, slow", seed, 1.2)


def train(client: httpx.Client, name: str, seed: int, level: float, project: str = "demo") -> None:
    begin = time.time_ns() - 10**12
    config = {"lr": 0.1, "seed": seed}
    stream = Stream(client, name=name, project=project, config=config, begin=begin, tags={"recipe": name})
    for step in range(60):
        loss = level + 0.01 * ((seed * 7 + step) % 5)
        stream.tell(step, {"loss": loss} | ({"val_loss": level + 0.01 * seed} if step % 20 == 19 else {}))
    stream.bye(59)
    stream.send()


def asked(client: httpx.Client, a: str, b: str, **more: str) -> dict[str, Any]:
    answer = client.get("/api/v1/compare", params={"a": a, "b": b, **more})
    assert 200 == answer.status_code, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_names_and_tags_of_a_project_select_groups(client: httpx.Client) -> None:
    by_name = asked(client, "new", "old%2C slow", project="demo")
    assert ("better", "val_loss", 59) == (by_name["decision"], by_name["metric"], by_name["last_step"])
    assert by_name == asked(client, "recipe=new", "recipe=old%2C slow", project="demo")
    assert {0, 1, 2, 3} == {run["seed"] for run in by_name["a"]["runs"]}
    assert pytest.approx(-0.2) == by_name["difference"]


def test_ids_select_without_a_project_and_one_each_decides_nothing(client: httpx.Client) -> None:
    everything = asked(client, "new", "recipe=old%2C slow", project="demo")
    one, other = (everything[name]["runs"][0]["id"] for name in "ab")
    assert "too few runs" == asked(client, one, other)["decision"]


@pytest.mark.parametrize(
    ("params", "status", "said"),
    [
        ({"a": "new", "b": "nobody", "project": "demo"}, 404, "there is no run 'nobody' in project 'demo'"),
        ({"a": "new", "b": "old"}, 404, "names and tags need `project`"),
        ({"a": " , ", "b": "old"}, 422, "a is ' , '; use ids of runs"),
        ({"a": "new", "b": "new", "project": "other"}, 404, "in project 'other'"),
    ],
)
def test_a_group_that_cannot_be_is_said(client: httpx.Client, params: dict[str, str], status: int, said: str) -> None:
    answer = client.get("/api/v1/compare", params=params)
    assert status == answer.status_code
    assert said in answer.json()["detail"]


def test_the_command_asks_the_collector(client: httpx.Client, capsys: pytest.CaptureFixture[str]) -> None:
    url = str(client.base_url)
    assert 1 == main(["compare", "old, slow", "--against", "new", "--url", url, "--project", "demo", "--json"])
    assert "worse" == json.loads(capsys.readouterr().out)["decision"]
    assert 2 == main(["compare", "nobody", "--against", "new", "--url", url, "--project", "demo"])
    assert "there is no run 'nobody'" in capsys.readouterr().err


def test_a_group_beyond_the_limit_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        for seed in range(33):
            train(client, "many", seed, 1.0)
        answer = client.get("/api/v1/compare", params={"a": "many", "b": "many", "project": "demo"})
    assert 422 == answer.status_code
    assert "a means 33 runs; use at most 32" in answer.json()["detail"]
