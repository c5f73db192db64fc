"""The list of directives has the answers of the processes that carried them out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.feeding import STEP, Stream, serving, train


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with serving(Path(tmp_path_factory.mktemp("collector"))) as client:
        client.headers["X-Ammeter-Request"] = "test"
        yield client


def live(client: httpx.Client, **named: Any) -> Stream:
    stream = Stream(client, begin=time.time_ns() - 10 * STEP, **named)
    train(stream, 0, 5)
    stream.send()
    return stream


def ask(client: httpx.Client, run: str, **query: Any) -> dict[str, Any]:
    newest: dict[str, Any] = client.post(f"/api/v1/runs/{run}/directives", params=query).json()["items"][0]
    return newest


@pytest.mark.parametrize(("arm", "steps"), [("origin", 5), ("census", 1), ("trial", 20), ("tensors", 5)])
def test_each_reading_has_its_own_number_of_steps(client: httpx.Client, arm: str, steps: int) -> None:
    run = live(client).run
    assert (arm, steps, []) == tuple(ask(client, run, arm=arm)[name] for name in ("arm", "steps", "answers"))
    assert 7 == ask(client, run, arm=arm, steps=7)["steps"]
    assert 422 == client.post(f"/api/v1/runs/{run}/directives", params={"arm": "weather"}).status_code


def test_answers_belong_to_the_directive_that_they_name(client: httpx.Client) -> None:
    first = live(client, world_size=2)
    second = Stream(client, run=first.run, rank=1, world_size=2, begin=first.begin)
    train(second, 0, 5)
    second.send()
    earlier, later = ask(client, first.run, arm="census"), ask(client, first.run, arm="trial")
    for stream in (second, first):
        stream.say("directive.done", 4, id=later["id"], arm="trial", bad_steps=0)
        stream.send()
    first.say("directive.refused", 4, id=earlier["id"], arm="census", reason="busy")
    first.say("directive.done", 4, id="of nobody", arm="census")
    first.send()
    items = client.get(f"/api/v1/runs/{first.run}/directives").json()["items"]
    told = {
        item["arm"]: [(answer["rank"], answer["name"], answer["step"]) for answer in item["answers"]] for item in items
    }
    assert [(0, "directive.done", 4), (1, "directive.done", 4)] == told["trial"]
    assert [(0, "directive.refused", 4)] == told["census"]
