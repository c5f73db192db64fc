"""Curves that follow from others, against numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.feeding import Stream, curves, serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with serving(tmp_path_factory.mktemp("collector")) as client:
        yield client


def read(client: httpx.Client, stream: Stream, names: str, **asked: Any) -> dict[str, tuple[list[int], list[float]]]:
    answer = client.get(f"/api/v1/runs/{stream.run}/series", params={"names": names, **asked})
    assert answer.status_code == 200, answer.text
    return {item["name"]: (item["steps"], item["values"]) for item in curves(answer.json())}


def test_headroom_is_the_distance_of_the_scaled_gradients_from_the_largest_number(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {"scale": 1024.0, "grad_absmax": 0.5})
    stream.tell(1, {"scale": 2048.0})
    stream.tell(2, {"grad_absmax": 0.5})  # the scale of this step is unknown
    stream.tell(3, {"scale": 2048.0, "grad_absmax": 0.0})  # no gradient, no distance
    stream.tell(4, {"scale": 2048.0, "grad_absmax": 0.25})
    stream.send()
    steps, values = read(client, stream, "headroom:float16")["headroom:float16"]
    assert [0, 4] == steps
    assert [pytest.approx(math.log2(65504) - 9, abs=1e-5)] * 2 == values
    assert [pytest.approx(math.log2(57344) - 9, abs=1e-5)] == read(client, stream, "headroom:float8_e5m2", to=1)[
        "headroom:float8_e5m2"
    ][1]


def test_without_a_loss_scale_gradients_count_as_they_are(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {"grad_absmax": 0.5})
    stream.send()
    steps, values = read(client, stream, "headroom:bfloat16")["headroom:bfloat16"]
    assert [0] == steps
    assert [pytest.approx(129, abs=0.02)] == values


def test_underflow_is_the_share_below_the_smallest_normal_number(client: httpx.Client) -> None:
    stream = Stream(client)
    for step in range(6):
        stream.tell(step, {"loss": 1.0})
    # exponents from -16 to -12, then zeros, then NaN and Inf
    stream.say("gradient.spectrum", 2, lowest=-16, counts=[10, 20, 30, 20, 10, 9, 1], scale=8.0)
    stream.say("gradient.spectrum", 5, lowest=-16, counts=[0, 0, 0, 0, 0, 0, 0], scale=8.0)
    stream.send()
    found = read(client, stream, "underflow:float16,loss,underflow:bfloat16,underflow:int4")
    assert {"underflow:float16", "loss"} == {*found}  # the lowest bin does not reach bfloat16's limit
    steps, values = found["underflow:float16"]
    assert [2] == steps
    assert [pytest.approx(0.3)] == values


def test_many_values_are_reduced_and_the_extremes_stay(client: httpx.Client) -> None:
    stream = Stream(client)
    for step in range(500):
        stream.tell(step, {"scale": 1.0, "grad_absmax": 1024.0 if step == 321 else 1.0})
    stream.send()
    steps, values = read(client, stream, "headroom:float16", points=16)["headroom:float16"]
    assert len(steps) <= 16
    assert 321 == steps[values.index(min(values))]


def test_the_times_of_axes_are_omitted_on_request(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {"loss": 1.0})
    stream.send()
    answer = client.get(f"/api/v1/runs/{stream.run}/series", params={"names": "loss", "times": False}).json()
    assert [{"steps": [0], "times": []}] == answer["axes"]
