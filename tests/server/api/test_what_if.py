from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.api import what_if
from tests.server.counted import say_exponents, spread
from tests.server.feeding import Stream, serving, train


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def answered(client: httpx.Client, stream: Stream, **asked: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{stream.run}/what-if", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run(client: httpx.Client, **named: Any) -> Stream:
    """At a scale of 2^10: a narrow tensor, one for float16 and one for nothing below float32, and zeros."""
    stream = Stream(client, **named)
    train(stream, 0, 9)
    tensors = {"narrow": spread(8), "wide": spread(38, 10), "widest": spread(270, 125), "zeros": [0.0, 0.0]}
    say_exponents(stream, 8, tensors)
    say_exponents(stream, 8, {"narrow": [0.5, 0.25]}, scale=1.0, of="weight")
    stream.send()
    return stream


def shares(item: dict[str, Any]) -> tuple[float, float, float]:
    return item["overflow"], item["subnormal"], item["flushed"]


def test_shares_are_those_of_the_format_and_the_scale(client: httpx.Client) -> None:
    stream = run(client)
    answer = answered(client, stream)
    assert ("gradient", "float16", "recorded", 0, stream.stream) == tuple(
        answer[key] for key in ("of", "format", "scale", "rank", "stream")
    )
    narrow, wide, _, zeros = answer["items"]
    assert ("narrow", 1024.0, (0, 0, 0), 8, 8, 0.0) == (
        narrow["name"], narrow["scale"], shares(narrow), narrow["nonzero"], narrow["last_step"], narrow["margin"]
    )  # fmt: skip
    assert (0, 10 / 38, 3 / 38) == pytest.approx(shares(wide))  # from 2^10 down to 2^-27
    assert [None] * 4 == [zeros[key] for key in ("scale", "overflow", "flushed", "recommended")]
    assert (0, 3 / 38, 0) != shares(answered(client, stream, scale="2^4")["items"][1])
    assert (0.125, 0, 0) == pytest.approx(shares(answered(client, stream, scale="2^26")["items"][0]))
    (_, flushed) = (
        answered(client, stream, format="float8_e4m3fn", scale=scale)["items"][0] for scale in ("2^10", "8")
    )
    assert (0, 3 / 8, 5 / 8) == pytest.approx(shares(flushed))


def test_each_tensor_has_its_best_scale_and_the_narrowest_format(client: httpx.Client) -> None:
    items = answered(client, run(client), scale="best")["items"]
    assert ["float8_e4m3fn", "float16", None, None] == [item["recommended"] for item in items]
    assert [False] * 4 == [item["undecided"] for item in items]
    narrow = items[0]
    assert [("float8_e4m3fn", 2.0**17), ("float8_e5m2", 2.0**24), ("float16", 2.0**24)] == [
        (row["format"], row["scale"]) for row in narrow["formats"][:3]
    ]
    assert 2.0**24 == narrow["scale"]
    assert [False, False, False, False] == [row["fits"] for row in items[2]["formats"]]
    assert [] == items[3]["formats"]


def test_weights_are_asked_for(client: httpx.Client) -> None:
    (item,) = answered(client, run(client), of="weight", format="float8_e5m2")["items"]
    assert ("narrow", 1.0, 2) == (item["name"], item["scale"], item["nonzero"])


def test_a_sample_has_a_margin(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    say_exponents(stream, 2, {"few": [1.0] * 30 + [2.0**-40]}, elements=10**6)
    stream.send()
    (item,) = answered(client, stream, format="float8_e4m3fn", scale="best")["items"]
    assert item["margin"] == pytest.approx(3 / 31, rel=0.01)
    assert (None, True) == (item["recommended"], item["undecided"])


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"format": "float8"}, "format is 'float8'; use float8_e4m3fn, float8_e5m2, float16, bfloat16"),
        ({"format": ""}, "format is ''; use"),
        ({"scale": "0"}, "scale is '0'; use a number from 2^-126 to 2^126 such as 1024 or 2^10, recorded or best"),
        ({"scale": "-4"}, "scale is '-4'"),
        ({"scale": "nan"}, "scale is 'nan'"),
        ({"scale": "inf"}, "scale is 'inf'"),
        ({"scale": "2^1000000000000"}, "scale is '2^1000000000000'"),
        ({"scale": "3^2"}, "scale is '3^2'"),
        ({"scale": "x" * 500}, f"scale is '{'x' * 80}'; use"),
        ({"of": "activation"}, "what is cast is 'activation'; use gradient or weight"),
    ],
    ids=str,
)
def test_a_bad_value_is_a_clear_error(client: httpx.Client, asked: dict[str, str], words: str) -> None:
    answer = client.get(f"/api/v1/runs/{run(client).run}/what-if", params=asked)
    assert (422, True) == (answer.status_code, words in answer.json()["detail"])
    assert "application/problem+json" == answer.headers["content-type"]


def test_a_run_without_readings_has_an_empty_list(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send()
    answer = answered(client, stream)
    assert ([], None, None) == (answer["items"], answer["stream"], answer["next_page_token"])
    assert 404 == client.get("/api/v1/runs/nobody/what-if").status_code


def test_it_is_the_lowest_rank_and_its_newest_attempt_with_readings(client: httpx.Client) -> None:
    first = run(client, rank=1, world_size=2)
    later = Stream(client, run=first.run, rank=1, world_size=2, begin=first.begin + 10**12)
    train(later, 0, 9)
    say_exponents(later, 4, {"narrow": [1.0]})
    later.send()
    assert later.stream == answered(client, first)["stream"] == answered(client, first, rank=1)["stream"]
    assert 10 + 4 == answered(client, first)["items"][0]["last_step"]
    assert 4 == answered(client, first, axis="life")["items"][0]["last_step"]
    zero = Stream(client, run=first.run, rank=0, world_size=2)
    train(zero, 0, 3)
    zero.send()
    assert None is answered(client, first)["stream"]


def test_tensors_come_in_pages_and_all_events_are_read(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "EVENTS_PER_READ", 2)
    stream = Stream(client)
    train(stream, 0, 9)
    for at in range(5):
        say_exponents(stream, 8, {f"layer.{at}.weight": spread(8)})
    stream.send()
    page = answered(client, stream, page_size=3)
    rest = answered(client, stream, page_size=3, page_token=page["next_page_token"])
    names = [item["name"] for item in page["items"] + rest["items"]]
    assert [f"layer.{at}.weight" for at in range(5)] == names
    assert None is rest["next_page_token"]


def test_malformed_entries_do_not_harm(client: httpx.Client) -> None:
    stream = run(client)
    stream.say("tensor.exponents", 9, of="gradient", scale=1.0, tensors=[{"tensor": "bad", "counts": "many"}, None])
    stream.say("tensor.exponents", 9, of="gradient", scale="high", tensors="none")
    stream.send()
    assert ["narrow", "wide", "widest", "zeros"] == [item["name"] for item in answered(client, stream)["items"]]
