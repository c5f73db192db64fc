from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ammeter.wire.columns import ABSENT, measured
from ammeter.wire.frames import Schema, Tensor
from ammeter_server.curves.layer_map import MAX_UNPACKED_VALUES
from ammeter_server.db import connect
from ammeter_server.maintenance.compaction import compact
from tests.server.feeding import TENSORS, Stream, break_down, serving, train
from tests.server.keeping import Fed, server, shown

NAMES = [tensor.name for tensor in TENSORS]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def ask(client: httpx.Client, of: Stream, **asked: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{of.run}/tensors/matrix", params=asked)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def broken(client: httpx.Client) -> Stream:
    """Forty good steps and ten in which three of four tensors are NaN, in batches of ten."""
    stream = Stream(client)
    for first in range(0, 40, 10):
        train(stream, first, first + 9)
        stream.send()
    break_down(stream, 40, 49)
    stream.send()
    return stream


def test_tensors_stand_over_each_other_at_the_same_steps(client: httpx.Client) -> None:
    stream = broken(client)
    answer = ask(client, stream, cells=5)
    assert ([0, 10, 20, 30, 40, 50], NAMES) == (answer["steps"], [item["name"] for item in answer["items"]])
    assert ("grad.norm", 0, stream.stream) == (answer["stat"], answer["rank"], answer["stream"])
    norms = [(1.2 + 0.4 * math.sin(step * 1.7) + 3.0 * math.exp(-step / 20)) / 2 for step in range(40)]
    best = [max(norms[begin : begin + 10]) for begin in range(0, 40, 10)]
    assert [pytest.approx([*best]), "NaN"] == [answer["items"][0]["values"][:4], answer["items"][0]["values"][4]]
    assert [norms.index(norm) for norm in best] == answer["items"][0]["at"][:4], "the steps at which it was so"
    assert 40 == answer["items"][0]["at"][4]
    assert 0.5 == answer["items"][3]["values"][4]
    assert 1024 == answer["items"][3]["numel"]
    least = ask(client, stream, cells=5, show="lowest")["items"][0]["values"][:4]
    assert pytest.approx([min(norms[begin : begin + 10]) for begin in range(0, 40, 10)]) == least


def test_what_was_not_measured_is_null_and_a_stat_that_is_not_there_has_no_rows(client: httpx.Client) -> None:
    stream = broken(client)
    answer = ask(client, stream, stat="grad.absmax", **{"from": 9, "to": 12})
    assert ([9, 10, 11, 12, 13], [None, pytest.approx(0.02), None, None]) == (
        answer["steps"],
        answer["items"][0]["values"],
    )
    empty = Stream(client)
    empty.send()
    assert ([], []) == (ask(client, empty)["items"], ask(client, empty)["steps"])
    assert [] == ask(client, stream, rank=5)["items"]
    assert [] == ask(client, stream, **{"from": 50})["items"]
    refused = client.get(f"/api/v1/runs/{stream.run}/tensors/matrix", params={"stat": "grad.mood"})
    assert (422, True) == (refused.status_code, "use one of grad.norm" in refused.json()["detail"])


def test_tensors_are_in_the_order_of_the_forward_pass_if_it_is_known(client: httpx.Client) -> None:
    stream = broken(client)
    assert ("parameters", NAMES) == ordered(ask(client, stream, order="forward"))
    stream.say("tensors.ordered", 50, order=[3, 1, 1, 2, 0, 1])
    stream.send()
    assert ("parameters", NAMES) == ordered(ask(client, stream))
    answer = ask(client, stream, order="forward", cells=5)
    forward = [NAMES[3], NAMES[1], NAMES[2], NAMES[0]]
    assert ("forward", forward) == ordered(answer)
    values = {item["name"]: item["values"] for item in ask(client, stream, cells=5)["items"]}
    assert [values[name] for name in forward] == [item["values"] for item in answer["items"]]
    first = ask(client, stream, order="forward", cells=5, page_size=3)
    rest = ask(client, stream, order="forward", cells=5, page_size=3, page_token=first["next_page_token"])
    assert answer["items"] == first["items"] + rest["items"]
    assert "forward" == rest["order"]


def test_an_order_that_arrives_between_two_pages_changes_neither(client: httpx.Client) -> None:
    stream = broken(client)
    first = ask(client, stream, order="forward", page_size=3)
    stream.say("tensors.ordered", 50, order=[3, 1, 0, 3])
    stream.send()
    rest = ask(client, stream, order="forward", page_size=3, page_token=first["next_page_token"])
    assert ("parameters", NAMES[3:]) == ordered(rest)


def ordered(answer: dict[str, Any]) -> tuple[str, list[str]]:
    return answer["order"], [item["name"] for item in answer["items"]]


def test_pages_have_the_same_steps_although_more_come(client: httpx.Client) -> None:
    stream = broken(client)
    first = ask(client, stream, cells=5, page_size=3)
    train(stream, 50, 99)
    stream.send()
    rest = ask(client, stream, cells=5, page_size=3, page_token=first["next_page_token"])
    assert NAMES == [item["name"] for item in first["items"] + rest["items"]]
    assert first["steps"] == rest["steps"]
    assert rest["next_page_token"] is None
    assert 100 == ask(client, stream)["steps"][-1]


def test_arrays_are_as_they_are_described(client: httpx.Client) -> None:
    stream = broken(client)
    asked: dict[str, Any] = {"stat": "grad.absmax", "cells": 25}
    answer = ask(client, stream, **asked)
    body = client.get(f"/api/v1/runs/{stream.run}/tensors/matrix", params=asked | {"format": "float32"}).content
    begin = 4 + int.from_bytes(body[:4], "little")
    header = json.loads(body[4:begin])
    assert (0, answer["steps"]) == (begin % 8, header["steps"])
    cells = len(header["items"]) * 25
    values = np.frombuffer(body, "<f4", cells, begin).reshape(len(header["items"]), -1)
    offsets = np.frombuffer(body, f"<u{header['offset_bytes']}", offset=begin + 4 * cells).reshape(values.shape)
    for item, row, offset in zip(answer["items"], values, offsets, strict=True):
        at = (offset + np.array(header["steps"][:-1])).tolist()
        assert item["at"] == [step if there else None for step, there in zip(at, measured(row), strict=True)]
        assert [value is not None for value in item["values"]] == measured(row).tolist()
        assert [value for value in item["values"] if value is not None] == pytest.approx(row[measured(row)].tolist())


def test_what_was_read_is_not_made_again_until_more_has_come(client: httpx.Client) -> None:
    stream = broken(client)
    path = f"/api/v1/runs/{stream.run}/tensors/matrix"
    known = {"If-None-Match": client.get(path).headers["ETag"]}
    assert 304 == client.get(path, headers=known).status_code
    train(stream, 50, 50)
    stream.send()
    assert 200 == client.get(path, headers=known).status_code


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_map_of_many_values_shows_the_extreme_of_every_range_and_its_step(kind: str, tmp_path: Path) -> None:
    tensors = tuple(Tensor(f"t{number}", (4,), "float32") for number in range(1200))
    schema = Schema(("loss",), ("grad.norm",), tensors)
    values = np.full((schema.width, MAX_UNPACKED_VALUES // len(tensors) + 500), ABSENT, np.float32)
    read = np.arange(0, values.shape[1], 50)
    values[:, read] = np.random.default_rng(1).standard_normal((schema.width, len(read)), np.float32)
    norms = values[schema.span("grad.norm")]
    norms[7, 4000], norms[1100, 50] = np.nan, -np.inf
    with server(kind) as url, serving(tmp_path, url) as client:
        with closing(connect(url or f"sqlite:///{tmp_path / 'collector.db'}")) as store:
            fed = Fed(store, schema)
            fed.feed(values, 500)
            compact(store, fed.run, fed.stream, "me")
        path, asked = f"/api/v1/runs/{fed.run}/tensors/matrix", {"cells": 9, "page_size": 600}
        pages = [client.get(path, params=asked).json()]
        pages += [client.get(path, params={**asked, "page_token": pages[0]["next_page_token"]}).json()]
    assert pages[0]["steps"] == pages[1]["steps"]
    ranges = [np.arange(begin, end) for begin, end in pairwise(pages[0]["steps"])]
    assert (0, values.shape[1] - 1) == (ranges[0][0], ranges[-1][-1])
    items = [item for page in pages for item in page["items"]]
    assert [tensor.name for tensor in tensors] == [item["name"] for item in items]
    for item, norm in zip(items, norms, strict=True):
        parts = [shown(norm[steps], steps, lowest=False) for steps in ranges]
        assert [step for _, step in parts] == item["at"]
        assert pytest.approx([value for value, _ in parts], nan_ok=True) == [float(value) for value in item["values"]]
