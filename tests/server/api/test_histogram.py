from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.curves import spectra
from tests.server.feeding import BEGIN, Stream, serving, train


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def measure(stream: Stream, step: int, counts: Any, **said: Any) -> None:
    """Counts of exponents from -3 on, then zeros, then what is not finite."""
    stream.say("gradient.spectrum", step, **{"lowest": -3, "counts": counts, "scale": 65536.0, **said})


def told(client: httpx.Client, of: Stream, **asked: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{of.run}/spectrum", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def run(client: httpx.Client, readings: int = 6, **named: Any) -> Stream:
    stream = Stream(client, **named)
    for at in range(readings):
        train(stream, 10 * at, 10 * at + 9)
        measure(stream, 10 * at, [1, at, 0, 7, int(at == 4)])
        stream.send()
    return stream


def test_exponents_stand_beside_their_steps_times_and_scales(client: httpx.Client) -> None:
    stream = run(client)
    (item,) = told(client, stream)["items"]
    assert (0, stream.stream, -3) == (item["rank"], item["stream"], item["lowest"])
    assert ([0, 10, 20, 30, 40, 50], [65536.0] * 6) == (item["steps"], item["scales"])
    assert [[1, at, 0] for at in range(6)] == item["counts"]
    assert ([7] * 6, [0, 0, 0, 0, 1, 0], [1] * 6) == (item["zeros"], item["nonfinite"], item["readings"])
    assert BEGIN / 1e9 + 1 == item["times"][1]


def test_more_than_there_are_points_is_summed_and_nothing_left_out(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spectra, "EVENTS_PER_READ", 4)
    (item,) = told(client, run(client, 7), points=3)["items"]
    assert ([0, 20, 40], [2, 2, 3]) == (item["steps"], item["readings"])
    assert [10, 30, 60] == item["last_steps"]
    assert [[2, 1, 0], [2, 5, 0], [3, 15, 0]] == item["counts"]
    assert ([14, 14, 21], [0, 0, 1]) == (item["zeros"], item["nonfinite"])


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        ({"from": 20, "to": 30}, [20, 30]),
        ({"since": BEGIN / 1e9 + 4.0}, [40, 50]),
        ({"until": BEGIN / 1e9 + 0.5}, [0]),
        ({"rank": 0, "from": 50}, [50]),
    ],
)
def test_steps_and_times_are_chosen(client: httpx.Client, asked: dict[str, Any], steps: list[int]) -> None:
    assert steps == told(client, run(client), **asked)["items"][0]["steps"]


def test_each_rank_has_its_own_and_they_come_in_pages(client: httpx.Client) -> None:
    first = run(client, 2, rank=0, world_size=4)
    for rank in (1, 2, 3):
        run(client, 2, run=first.run, rank=rank, world_size=4)
    asked: dict[str, Any] = {"rank": "0,1,3", "page_size": 2}
    page = told(client, first, **asked)
    rest = told(client, first, **asked, page_token=page["next_page_token"])
    assert [0, 1, 3] == [item["rank"] for item in page["items"] + rest["items"]]
    assert rest["next_page_token"] is None
    assert [] == told(client, first, rank=9)["items"]


def test_what_is_no_histogram_is_left_out(client: httpx.Client) -> None:
    stream = run(client, 2)
    for counts in ("many", [1, -1, 0, 0], [1] * 9, [1.5] * 5):
        measure(stream, 30, counts)
    measure(stream, 30, [1, 1, 1, 1, 1], lowest=None)
    measure(stream, 40, [1, 1, 1, 1, 1], scale=None)
    stream.send()
    (item,) = told(client, stream)["items"]
    assert ([0, 10, 40], None) == (item["steps"], item["scales"][-1])
    assert 404 == client.get("/api/v1/runs/nobody/spectrum").status_code


def count(stream: Stream, step: int, tensor: str, lowest: int, counts: list[int], of: str = "gradient") -> None:
    """Counts of one tensor's exponents from `lowest` on, seven cells each."""
    cells = [part for number in counts for part in (number, 0, 0, 0, 0, 0, 0)]
    entry = {"tensor": tensor, "elements": 100, "lowest": lowest, "counts": cells, "zeros": 5, "nonfinite": 0}
    stream.say("tensor.exponents", step, of=of, scale=1024.0, tensors=[{**entry, "absmax": 2.0}])


def test_the_exponents_of_one_tensor_have_the_same_bins(client: httpx.Client) -> None:
    stream = run(client)
    count(stream, 20, "head.weight", -3, [1, 2, 3])
    count(stream, 20, "head.weight", -9, [9], of="weight")
    count(stream, 20, "embed.weight", -9, [9])
    count(stream, 40, "head.weight", -5, [4, 0, 5])
    stream.say("tensor.exponents", 50, of="gradient", scale=1.0, tensors=[{"tensor": "head.weight"}, 7])
    stream.send()
    (item,) = told(client, stream, tensor="head.weight")["items"]
    assert ([20, 40], -5, [1024.0, 1024.0]) == (item["steps"], item["lowest"], item["scales"])
    assert [[0, 0, 1, 2, 3], [4, 0, 5, 0, 0]] == item["counts"]
    assert ([5, 5], [0, 0]) == (item["zeros"], item["nonfinite"])
    assert [[4, 0, 5]] == told(client, stream, tensor="head.weight", **{"from": 30})["items"][0]["counts"]
    assert [] == told(client, stream, tensor="blocks.0.mlp.fc.weight")["items"]


def test_a_sum_over_different_scales_has_none(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 9)
    for step in range(4):
        measure(stream, step, [1, 1, 1, 0, 0], scale=65536.0 if step < 3 else 32768.0)
    stream.send()
    assert [[65536.0, None]] == [item["scales"] for item in told(client, stream, points=2)["items"]]
