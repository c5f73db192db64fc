from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.feeding import Stream, break_down, serving, train

API = "/api/v1/sparklines"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def lines(client: httpx.Client, **parameters: Any) -> dict[str, dict[str, list[Any]]]:
    answer = client.get(API, params=parameters)
    assert 200 == answer.status_code, answer.text
    return {item["run"]: item["series"] for item in answer.json()["items"]}


def sent(client: httpx.Client, steps: int = 200, **named: Any) -> Stream:
    stream = Stream(client, **named)
    train(stream, 0, steps - 1)
    stream.send()
    return stream


def test_runs_have_as_many_values_as_wanted_in_the_order_of_the_request(client: httpx.Client) -> None:
    first, second = sent(client), sent(client)
    found = lines(client, runs=f"{second.run},{first.run},nobody", values=40)
    assert [second.run, first.run] == list(found)
    assert {"loss": 40, "scale": 40} == {name: len(values) for name, values in found[first.run].items()}
    loss = found[first.run]["loss"]
    assert loss[0] > loss[-1]
    assert [65536.0] * 40 == found[first.run]["scale"]


def test_a_value_that_is_not_finite_is_not_hidden_by_its_neighbours(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 149)
    break_down(stream, 150, 151)
    train(stream, 152, 199)
    stream.send()
    assert "NaN" in lines(client, runs=stream.run, names="grad_norm", values=16)[stream.run]["grad_norm"]


def test_a_short_run_has_a_value_for_each_step(client: httpx.Client) -> None:
    stream = sent(client, steps=3)
    assert 3 == len(lines(client, runs=stream.run)[stream.run]["loss"])


def test_steps_without_a_reading_are_null(client: httpx.Client) -> None:
    stream = Stream(client)
    for step in (0, 99):
        stream.tell(step, {"loss": 1.0})
    stream.send()
    assert [1.0, *[None] * 8, 1.0] == lines(client, runs=stream.run, values=10)[stream.run]["loss"]


def test_a_run_without_steps_has_no_lines(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.send()
    assert {} == lines(client, runs=stream.run)


def test_too_many_runs_are_refused(client: httpx.Client) -> None:
    answer = client.get(API, params={"runs": ",".join(map(str, range(101)))})
    assert (422, True) == (answer.status_code, "use at most 100" in answer.json()["detail"])
