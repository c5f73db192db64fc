"""Series of scalars and tensors over steps or time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.wire.frames import STATS, Schema, Tensor
from ammeter_server.api import series
from tests.server.feeding import BEGIN, SCHEMA, Stream, curves, serving, train


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def ask(client: httpx.Client, of: Stream, **asked: Any) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/runs/{of.run}/series", params=asked)
    assert answer.status_code == 200, answer.text
    return curves(answer.json())


def test_several_names_come_at_once_over_all_batches(client: httpx.Client) -> None:
    stream = Stream(client)
    for first in range(0, 30, 10):
        train(stream, first, first + 9)
        stream.send()
    scale, loss = ask(client, stream, names="scale,loss")
    assert ("scale", "loss") == (scale["name"], loss["name"])
    assert list(range(30)) == scale["steps"] == loss["steps"]
    assert [65536.0] * 30 == scale["values"]
    assert (0, stream.stream) == (loss["rank"], loss["stream"])
    assert BEGIN / 1e9 + 0.1 == pytest.approx(loss["times"][1], abs=1e-3)


def test_steps_that_were_not_measured_are_left_out(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 60)
    stream.send()
    assert [0, 25, 50] == ask(client, stream, names="val_loss")[0]["steps"]
    assert [] == ask(client, stream, names="clip_max,no_such_name,grad.norm:no.such.tensor,no.such:tensor")


def test_a_tensor_has_its_own_curve(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {}, {"grad.norm": {"head.weight": 0.5, "embed.weight": 7.0}})
    stream.send()
    item = ask(client, stream, names="grad.norm:head.weight")[0]
    assert ("grad.norm:head.weight", [0], [0.5]) == (item["name"], item["steps"], item["values"])


def test_values_that_are_no_numbers_are_words(client: httpx.Client) -> None:
    stream = Stream(client)
    for step, loss in enumerate((1.0, math.nan, math.inf, -math.inf)):
        stream.tell(step, {"loss": loss})
    stream.send()
    assert [1.0, "NaN", "Infinity", "-Infinity"] == ask(client, stream, names="loss")[0]["values"]


def test_from_and_to_are_the_first_and_the_last_step(client: httpx.Client) -> None:
    stream = Stream(client)
    for first in range(0, 30, 10):
        train(stream, first, first + 9)
        stream.send()
    assert list(range(8, 13)) == ask(client, stream, names="loss", **{"from": 8, "to": 12})[0]["steps"]
    assert [] == ask(client, stream, names="loss", **{"from": 30})


def test_more_steps_than_points_keep_spikes_and_nans(client: httpx.Client) -> None:
    stream = Stream(client)
    for step in range(3000):
        stream.tell(step, {"loss": {1111: 99.0, 2222: math.nan}.get(step, 1.0)})
    stream.send()
    item = ask(client, stream, names="loss", points=50)[0]
    assert len(item["steps"]) <= 50
    shown = dict(zip(item["steps"], item["values"], strict=True))
    assert (99.0, "NaN") == (shown[1111], shown[2222])
    assert (0, 2999) == (item["steps"][0], item["steps"][-1])


def test_ranks_and_lives_are_series_of_their_own(client: httpx.Client) -> None:
    first = Stream(client, world_size=2)
    train(first, 0, 3)
    first.send()
    second = Stream(client, run=first.run, rank=1, world_size=2)
    train(second, 0, 2)
    second.send()
    assert [(0, 4), (1, 3)] == [(item["rank"], len(item["steps"])) for item in ask(client, first, names="loss")]
    assert [1] == [item["rank"] for item in ask(client, first, names="loss", rank=1)]
    assert [second.stream] == [item["stream"] for item in ask(client, first, names="loss", stream=second.stream)]


def test_several_ranks_are_asked_for_at_once(client: httpx.Client) -> None:
    first = Stream(client, world_size=4)
    for rank in range(4):
        stream_of_rank = Stream(client, run=first.run, rank=rank, world_size=4)
        train(stream_of_rank, 0, 3)
        stream_of_rank.send()
    items = ask(client, first, names="loss,scale", rank="3,1")
    assert [(1, "loss"), (1, "scale"), (3, "loss"), (3, "scale")] == [(item["rank"], item["name"]) for item in items]


def test_a_stretch_of_time_is_chosen_as_answers_say_times(client: httpx.Client) -> None:
    stream = Stream(client)
    for first in range(0, 30, 10):
        train(stream, first, first + 9)
        stream.send()
    begin = BEGIN // 10**9  # a tenth of a second from step to step
    for asked, steps in (
        ({"since": begin + 1.0, "until": begin + 1.2}, [10, 11, 12]),
        ({"since": "2025-10-09T08:53:22.750Z"}, [28, 29]),
        ({"since": "2025-10-09T10:53:22.75+02:00", "to": 28}, [28]),
        ({"until": "2025-10-09T08:53:20"}, [0]),
        ({"since": begin - 100, "until": begin + 100, "from": 3, "to": 4}, [3, 4]),
    ):
        assert steps == ask(client, stream, names="loss", **asked)[0]["steps"], asked
    for asked in ({"since": begin + 3}, {"until": begin - 1}, {"since": begin + 1.01, "until": begin + 1.09}):
        assert [] == ask(client, stream, names="loss", **asked), asked
    assert [] == ask(client, stream, names="loss", since="9999-12-31T23:59:59Z")
    assert [10, 11] == ask(client, stream, names="loss", since=begin + 1, until=begin + 1.1, by="time")[0]["steps"]


def test_points_are_spread_over_time_where_that_is_asked(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.begin -= 100 * 10**9
    for step in range(1000):
        stream.tell(step, {"loss": math.sin(step)})
    stream.begin += 100 * 10**9  # a pause
    for step in range(1000, 1100):
        stream.tell(step, {"loss": math.sin(step)})
    stream.send()
    (by_step,) = ask(client, stream, names="loss", points=40)
    (by_time,) = ask(client, stream, names="loss", points=40, by="time")
    assert (0, 1099) == (by_time["steps"][0], by_time["steps"][-1])
    assert 6 >= sum(step >= 1000 for step in by_step["steps"])
    assert 1 <= sum(step >= 1000 for step in by_time["steps"]) < sum(step < 1000 for step in by_time["steps"])


def test_every_series_is_on_exactly_one_page_while_ranks_come(client: httpx.Client) -> None:
    first = Stream(client, rank=1, world_size=4)
    train(first, 0, 3)
    first.send()
    wanted = [("loss", 1), ("scale", 1), ("grad_norm", 1), ("loss", 3), ("scale", 3), ("grad_norm", 3)]

    def come(rank: int) -> None:
        stream_of_rank = Stream(client, run=first.run, rank=rank, world_size=4)
        train(stream_of_rank, 0, 3)
        stream_of_rank.send()

    come(3)
    seen: list[tuple[str, int]] = []
    asked: dict[str, Any] = {"names": "loss,scale,grad_norm", "page_size": 2}
    while True:
        document = client.get(f"/api/v1/runs/{first.run}/series", params=asked).json()
        seen += [(item["name"], item["rank"]) for item in document["items"]]
        if document["next_page_token"] is None:
            break
        asked["page_token"] = document["next_page_token"]
        come(0)  # before what was shown
    assert wanted == seen


def test_a_page_ends_where_it_holds_much(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MAX_VALUES", 25)
    stream = Stream(client)
    train(stream, 0, 19)
    stream.send()
    document = client.get(f"/api/v1/runs/{stream.run}/series", params={"names": "loss,scale,grad_norm"}).json()
    assert ["loss", "scale"] == [item["name"] for item in document["items"]]
    token = {"page_token": document["next_page_token"]}
    rest = client.get(f"/api/v1/runs/{stream.run}/series", params={"names": "loss,scale,grad_norm", **token}).json()
    assert (["grad_norm"], None) == ([item["name"] for item in rest["items"]], rest["next_page_token"])
    assert 422 == client.get(f"/api/v1/runs/{stream.run}/series", params={"names": "loss", **token}).status_code


@pytest.mark.parametrize("format", ["json", "float32"])
def test_what_was_read_already_is_not_read_again_until_more_has_come(client: httpx.Client, format: str) -> None:
    stream = Stream(client)
    train(stream, 0, 9)
    stream.send()
    asked: dict[str, Any] = {"url": f"/api/v1/runs/{stream.run}/series", "params": {"names": "loss", "format": format}}
    known = {"If-None-Match": client.get(**asked).headers["ETag"]}
    again = client.get(**asked, headers=known)
    assert (304, b"") == (again.status_code, again.content)
    asked["params"]["points"] = 16
    assert 200 == client.get(**asked, headers=known).status_code
    del asked["params"]["points"]
    train(stream, 10, 10)
    stream.send()
    assert 200 == client.get(**asked, headers=known).status_code


def test_a_name_that_comes_later_has_its_curve_although_the_columns_changed(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {"loss": 1.0})
    stream.send()
    stream.schema = Schema((*SCHEMA.scalars, "accuracy"), SCHEMA.stats, SCHEMA.tensors)
    stream.items.append(stream.hello())
    stream.tell(1, {"loss": 2.0, "accuracy": 0.5})
    stream.send()
    loss, accuracy = ask(client, stream, names="loss,accuracy")
    assert ([0, 1], [1.0, 2.0]) == (loss["steps"], loss["values"])
    assert ([1], [0.5]) == (accuracy["steps"], accuracy["values"])


def test_a_comma_in_a_tensors_name_is_written_as_percent_2c(client: httpx.Client) -> None:
    stream = Stream(client, schema=Schema(SCHEMA.scalars, tuple(STATS), (Tensor("a,b", (2,), "float32"),)))
    stream.tell(0, {}, {"grad.norm": 3.0})
    stream.send()
    assert [3.0] == ask(client, stream, names="grad.norm:a%2Cb")[0]["values"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"names": ""}, "use 1 to 256, such as scale,loss"),
        ({"names": ",".join(f"n{number}" for number in range(257))}, "257 names"),
        ({}, "query.names"),
        ({"names": "loss", "points": 3}, "greater than or equal to 16"),
        ({"names": "loss", "from": -1}, "query.from is '-1'"),
        ({"names": "loss", "rank": "0;1"}, "query.rank is '0;1'"),
        ({"names": "loss", "since": "yesterday"}, "query.since is 'yesterday'"),
    ],
)
def test_a_question_that_cannot_be_names_value_and_remedy(
    client: httpx.Client, asked: dict[str, str], said: str
) -> None:
    stream = Stream(client)
    train(stream, 0, 1)
    stream.send()
    answer = client.get(f"/api/v1/runs/{stream.run}/series", params=asked)
    assert 422 == answer.status_code
    assert said in answer.json()["detail"]


def test_what_was_logged_late_is_a_point_at_its_step(client: httpx.Client) -> None:
    stream = Stream(client)
    for step in range(10):
        stream.tell(step, {"loss": 1.0, **({"val_loss": 5.0} if step == 2 else {})})
    stream.send()
    tag = client.get(f"/api/v1/runs/{stream.run}/series?names=val_loss").headers["ETag"]
    stream.say("values.logged", 4, val_loss=3.0, val_accuracy=0.5)
    stream.say("values.logged", 2, val_loss=4.0)
    stream.send()
    answer = client.get(
        f"/api/v1/runs/{stream.run}/series?names=val_loss,loss,val_accuracy", headers={"If-None-Match": tag}
    )
    found = {curve["name"]: curve for curve in curves(answer.json())}
    assert ([2, 4], [4.0, 3.0]) == (found["val_loss"]["steps"], found["val_loss"]["values"])
    assert ([4], [0.5]) == (found["val_accuracy"]["steps"], found["val_accuracy"]["values"])
    assert 10 == len(found["loss"]["steps"])
    assert (
        304
        != client.get(f"/api/v1/runs/{stream.run}/series?names=val_loss", headers={"If-None-Match": tag}).status_code
    )
    within = client.get(f"/api/v1/runs/{stream.run}/series?names=val_loss&from=3").json()
    assert [4] == curves(within)[0]["steps"]
