"""One axis of steps over the lives of a run: charts, events, incidents and the run itself, on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from ammeter.verdicts.framework.placement import LifeRecord, Place, place
from tests.server.api.live_reader import Reader
from tests.server.api.test_histogram import measure
from tests.server.databases import postgresql
from tests.server.feeding import BEGIN, STEP, Stream, break_down, curves, serving, train, wait_until

LATER = BEGIN + 600 * 10**9


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    if request.param == "sqlite":
        with serving(tmp_path) as client:
            yield client
        return
    with postgresql() as url, serving(tmp_path, url) as client:
        yield client


def resumed(client: httpx.Client, at: int = 30, steps: int = 20) -> tuple[Stream, Stream]:
    """A process of 40 steps that died, and a second one from the checkpoint of an earlier step."""
    first = Stream(client)
    train(first, 0, 39)
    first.say("checkpoint.saved", at - 1, path="ckpt.pt", steps=at)
    measure(first, 8, [1, 2, 3])
    measure(first, 35, [1, 2, 3])
    first.bye(39, "exception")
    first.send()
    second = Stream(client, run=first.run, begin=LATER)
    second.say("checkpoint.restored", 0, path="ckpt.pt")
    train(second, 0, steps - 1)
    second.send()
    return first, second


def ask(client: httpx.Client, run: str, of: str = "series", **asked: Any) -> dict[str, Any]:
    answer = client.get(f"/api/v1/runs/{run}/{of}".rstrip("/"), params=asked)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def steps(client: httpx.Client, run: str, **asked: Any) -> list[list[int]]:
    return [curve["steps"] for curve in curves(ask(client, run, names="loss", **asked))]


def test_a_later_life_counts_on_and_replaces_the_steps_that_it_repeats(client: httpx.Client) -> None:
    first, _ = resumed(client)
    assert [list(range(30)), list(range(30, 50))] == steps(client, first.run)
    one, two = curves(ask(client, first.run, names="loss"))
    assert [(0, 30), (30, None)] == [(curve["step_offset"], curve["replaced_from"]) for curve in (one, two)]
    own = curves(ask(client, first.run, names="loss", axis="life"))
    assert [list(range(40)), list(range(20))] == [curve["steps"] for curve in own]
    assert (one["values"], two["values"]) == (own[0]["values"][:30], own[1]["values"])
    assert [30, 0] == [curve["replaced_from"] or 0 for curve in own]
    assert [list(range(40)), list(range(30, 50))] == steps(client, first.run, replaced=True)


def test_from_and_to_are_steps_of_the_run(client: httpx.Client) -> None:
    first, _ = resumed(client)
    assert [[28, 29], [30, 31, 32]] == steps(client, first.run, **{"from": 28, "to": 32})
    assert [[31, 32]] == steps(client, first.run, **{"from": 31, "to": 32})
    assert [list(range(28, 33)), []] == [*steps(client, first.run, axis="life", **{"from": 28, "to": 32}), []]
    since = (LATER + 15 * STEP) / 1e9
    assert [list(range(45, 50))] == steps(client, first.run, since=since)


def test_curves_of_the_run_agree_with_its_comparison(client: httpx.Client) -> None:
    first, _ = resumed(client)
    base = Stream(client, begin=LATER)
    train(base, 0, 59)
    base.send()
    compared = ask(client, first.run, f"compare/{base.run}")
    (loss,) = [curve for curve in compared["series"] if curve["name"] == "loss"]
    drawn = curves(ask(client, first.run, names="loss"))
    assert loss["steps"] == [step for part in drawn for step in part["steps"]]
    assert pytest.approx(loss["run"], rel=1e-6) == [value for part in drawn for value in part["values"]]


def test_the_run_says_its_lives_and_its_step(client: httpx.Client) -> None:
    first, second = resumed(client)
    answer = ask(client, first.run, "")
    assert (49, 49, 49) == (answer["last_step"], answer["latest"]["loss_step"], answer["latest"]["grad_norm_step"])
    assert [
        {"number": 1, "stream": first.stream, "step_offset": 0, "first_step": 0, "last_step": 39, "replaced_from": 30},
        {
            "number": 2,
            "stream": second.stream,
            "step_offset": 30,
            "first_step": 30,
            "last_step": 49,
            "replaced_from": None,
        },
    ] == answer["lives"]
    (listed,) = client.get("/api/v1/runs").json()["items"]
    assert (49, answer["lives"]) == (listed["last_step"], listed["lives"])


def test_a_run_with_one_life_has_no_other_axis(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 9)
    stream.send()
    assert [] == ask(client, stream.run, "")["lives"]
    assert steps(client, stream.run, axis="life") == steps(client, stream.run) == [list(range(10))]


def test_skipped_steps_are_no_updates(client: httpx.Client) -> None:
    """The optimizer of the second life has 30 updates behind it; of the first 40 steps 5 were skipped before that."""
    first = Stream(client)
    train(first, 0, 9)
    break_down(first, 10, 14)
    train(first, 15, 39)
    first.bye(39)
    first.send()
    second = Stream(client, run=first.run, begin=LATER)
    second.say("optimizer.restored", 0, updates=30)
    train(second, 0, 9)
    second.send()
    assert [0, 35] == [life["step_offset"] for life in ask(client, first.run, "")["lives"]]


def test_ranks_lie_where_the_lowest_rank_of_their_life_lies(client: httpx.Client) -> None:
    run = ""
    for begin, updates in ((BEGIN, None), (LATER, 12)):
        for rank in range(2):
            stream = Stream(client, rank=rank, world_size=2, begin=begin + rank)
            stream.run = run = run or stream.run
            if updates and rank == 0:
                stream.say("optimizer.restored", 0, updates=updates)
            train(stream, 0, 19)
            stream.bye(19)
            stream.send()
    for rank in range(2):
        assert [list(range(12)), list(range(12, 32))] == steps(client, run, rank=rank)
    merged = curves(ask(client, run, names="grad_norm", merged=True))
    assert [list(range(12)), list(range(12, 32))] == [curve["steps"] for curve in merged]


def test_a_process_beside_another_keeps_its_own_steps(client: httpx.Client) -> None:
    first = Stream(client)
    train(first, 0, 39)
    first.send()
    beside = Stream(client, run=first.run, begin=BEGIN + 5 * STEP)
    train(beside, 0, 9)
    beside.send()
    assert [list(range(40)), list(range(10))] == steps(client, first.run)


def test_a_run_that_continues_another_counts_on(client: httpx.Client) -> None:
    first = Stream(client)
    train(first, 0, 39)
    first.bye(39)
    first.send()
    wait_until(lambda: ask(client, first.run, "")["state"] == "ended")
    again = Stream(client, run=first.run, begin=BEGIN + 2 * 3600 * 10**9)
    train(again, 0, 9)
    again.send()
    after = wait_until(lambda: ask(client, first.run, "")["continued_by"])
    assert [list(range(40))] == steps(client, first.run)
    assert [list(range(40, 50))] == steps(client, after)
    answer = ask(client, after, "")
    assert (49, [40]) == (answer["last_step"], [life["step_offset"] for life in answer["lives"]])


def test_the_heat_map_holds_all_lives(client: httpx.Client) -> None:
    first, _ = resumed(client)
    answer = ask(client, first.run, "tensors/matrix", cells=50)
    assert [*range(51)] == answer["steps"]
    for item in answer["items"]:
        assert [*range(50)] == item["at"]
    own = {axis: ask(client, first.run, "tensors/matrix", cells=50, axis=axis) for axis in ("run", "life")}
    assert [*range(20)] == own["life"]["items"][0]["at"]
    assert own["run"]["items"][0]["values"][30:] == own["life"]["items"][0]["values"]
    short = resumed(client, at=10, steps=5)[0]
    assert [*range(16)] == ask(client, short.run, "tensors/matrix", cells=50)["steps"]
    part = ask(client, first.run, "tensors/matrix", cells=50, **{"from": 28, "to": 32})
    assert [28, 29, 30, 31, 32] == part["items"][0]["at"]
    assert own["run"]["items"][0]["values"][28:33] == part["items"][0]["values"]


def test_the_spectrum_and_the_tensors_count_on(client: httpx.Client) -> None:
    first, second = resumed(client)
    measure(second, 8, [1, 2, 3])
    second.send()
    for axis, expected in (("run", ([8], [38])), ("life", ([8, 35], [8]))):
        items = ask(client, first.run, "spectrum", axis=axis)["items"]
        assert expected == tuple(item["steps"] for item in items) == tuple(item["last_steps"] for item in items)
    assert [[38]] == [spectrum["steps"] for spectrum in ask(client, first.run, "spectrum", **{"from": 30})["items"]]
    newest = {axis: ask(client, first.run, "tensors", axis=axis)["items"][0]["step"] for axis in ("run", "life")}
    assert {"run": 49, "life": 19} == newest


def test_events_and_incidents_say_what_to_add_to_their_steps(client: httpx.Client) -> None:
    first, second = resumed(client, steps=5)
    break_down(second, 5, 12)
    second.send()
    events = ask(client, first.run, "events", name="gradient.nonfinite")["items"]
    assert [(12 - index, 30) for index in range(8)] == [(event["step"], event["step_offset"]) for event in events]
    (incident,) = wait_until(lambda: ask(client, first.run, "incidents")["items"])
    assert (5, 30) == (incident["first_step"], incident["step_offset"])
    (of_all,) = client.get("/api/v1/incidents").json()["items"]
    assert incident["step_offset"] == of_all["step_offset"]
    one = client.get(f"/api/v1/incidents/{incident['id']}").json()
    assert incident["step_offset"] == one["step_offset"]


def test_live_steps_count_on_and_a_late_value_comes(client: httpx.Client) -> None:
    first, second = resumed(client)
    reader = Reader()
    reader.listen(client, first.run, lambda: reader.messages, names="loss,val_loss")
    assert [*range(30), *range(30, 50)] == reader.steps["0 loss"]
    before = list(reader.steps["0 val_loss"])
    second.say("values.logged", 7, val_loss=0.125)
    second.send()
    reader.listen(client, first.run, lambda: len(reader.steps["0 val_loss"]) > len(before), names="loss,val_loss")
    assert [*before, 37] == reader.steps["0 val_loss"]
    assert [*range(30), *range(30, 50)] == reader.steps["0 loss"]


def test_an_answer_changes_when_a_life_finds_its_place(client: httpx.Client) -> None:
    """The journal of the first life came later than that of the second one."""
    second = Stream(client, begin=LATER)
    train(second, 0, 9)
    second.send()
    path = f"/api/v1/runs/{second.run}/series?names=loss&stream={second.stream}"
    before = client.get(path)
    assert [0, 9] == [before.json()["axes"][0]["steps"][end] for end in (0, -1)]
    first = Stream(client, run=second.run)
    train(first, 0, 39)
    first.send()
    after = client.get(path, headers={"If-None-Match": before.headers["ETag"]})
    assert [40, 49] == [after.json()["axes"][0]["steps"][end] for end in (0, -1)]


def life(first: int, last: int, time: int, **more: Any) -> LifeRecord:
    return LifeRecord(first, last, time * 1000, time * 1000 + last, **more)


@pytest.mark.parametrize(
    ("lives", "places"),
    [
        ([], []),
        ([life(0, 9, 1)], [Place()]),
        ([life(0, 9, 1), life(0, 9, 2)], [Place(0, 10), Place(10)]),
        ([life(0, 9, 1), life(10, 19, 2)], [Place(0, 10), Place(0)]),
        ([life(0, 9, 1), life(0, 9, 2, updates_before=0)], [Place(0, 0), Place(0)]),
        ([life(0, 9, 1, updates_before=5), life(0, 9, 2, updates_before=12)], [Place(0, 7), Place(7)]),
        ([life(0, 9, 1), life(0, 9, 2, updates_before=99)], [Place(0, 10), Place(10)]),
        ([life(0, 9, 1), LifeRecord(), life(0, 9, 2)], [Place(0, 10), None, Place(10)]),
        (
            [life(0, 9, 1), life(0, 9, 2, updates_before=8), life(0, 9, 3, updates_before=4)],
            [Place(0, 4), Place(8, 4), Place(4)],
        ),
    ],
)
def test_places_of_lives(lives: list[LifeRecord], places: list[Place | None]) -> None:
    assert places == place(lives)


def test_a_life_that_is_replaced_before_it_begins_has_no_steps_left() -> None:
    assert [] == Place(8, 4).steps_of_run(np.arange(10)).tolist()
