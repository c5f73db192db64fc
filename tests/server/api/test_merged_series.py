"""Norms of shards, merged over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.wire.frames import STATS, Schema, Tensor
from tests.server.api.test_series import ask
from tests.server.feeding import BEGIN, SCHEMA, Stream, serving


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


SHARD = Schema(SCHEMA.scalars, tuple(STATS), (Tensor("a", (2, 3), "float32", 1), Tensor("b", (2,), "float32", 1)))


def shards(client: httpx.Client, norms: dict[int, list[float]], *, begin: int = BEGIN, run: str = "") -> list[Stream]:
    """Ranks that each hold a shard of two tensors; norms: rank -> norm of its part of either, step by step."""
    streams = [Stream(client, rank=rank, world_size=len(norms), schema=SHARD, begin=begin + rank) for rank in norms]
    for stream in streams:
        stream.run = run or streams[0].run
        for step, norm in enumerate(norms[stream.rank]):
            stream.tell(step, {"grad_norm": norm * 2**0.5}, {"grad.norm": norm})
        stream.send()
    return streams


def test_merged_norms_are_of_all_shards_at_the_steps_that_all_ranks_have(client: httpx.Client) -> None:
    streams = shards(client, {0: [3.0, 6.0, 1.0], 1: [4.0, 8.0]})
    whole, tensor = ask(client, streams[0], names="grad_norm,grad.norm:a", merged=True)
    assert (None, streams[0].stream) == (whole["rank"], whole["stream"])
    assert ([0, 1], [5.0, 10.0]) == (tensor["steps"], tensor["values"])
    assert pytest.approx([5 * 2**0.5, 10 * 2**0.5]) == whole["values"]
    assert [1] == ask(client, streams[0], names="grad_norm", merged=True, **{"from": 1})[0]["steps"]
    assert [0, 1] == [item["rank"] for item in ask(client, streams[0], names="grad_norm")]


def test_ranks_that_were_started_again_have_a_merged_series_for_each_life(client: httpx.Client) -> None:
    first = shards(client, {0: [3.0, 3.0], 1: [4.0, 4.0]})
    again = shards(client, {0: [6.0], 1: [8.0]}, begin=BEGIN + 10**12, run=first[0].run)
    items = ask(client, first[0], names="grad.norm:b", merged=True)
    assert [[5.0, 5.0], [10.0]] == [item["values"] for item in items]
    assert [first[0].stream, again[0].stream] == [item["stream"] for item in items]


def test_of_shards_of_which_one_has_not_been_heard_nothing_is_merged(client: httpx.Client) -> None:
    stream = Stream(client, world_size=2, schema=SHARD)
    stream.tell(0, {"grad_norm": 3.0}, {"grad.norm": 3.0})
    stream.send()
    assert [] == ask(client, stream, names="grad_norm", merged=True)


@pytest.mark.parametrize(
    ("asked", "detail"),
    [
        ({"names": "loss"}, "'loss' cannot be merged; use grad_norm, grad_absmax, grad.norm:<tensor>"),
        ({"names": "grad_norm", "rank": 0}, "omit rank and stream"),
        ({"names": "grad_norm", "stream": "x"}, "omit rank and stream"),
    ],
)
def test_what_has_no_meaning_for_all_ranks_together_is_refused(
    client: httpx.Client, asked: dict[str, Any], detail: str
) -> None:
    stream = shards(client, {0: [3.0]})[0]
    answer = client.get(f"/api/v1/runs/{stream.run}/series", params={**asked, "merged": True})
    assert 422 == answer.status_code
    assert detail in answer.json()["detail"]
