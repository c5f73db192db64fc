from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.wire.frames import Lost
from tests.server.databases import postgresql
from tests.server.feeding import BEGIN, STEP, Stream, break_down, serving, train, wait_until

API = "/api/v1/runs"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def test_a_run_tells_its_facts_latest_values_and_counters(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 50)
    stream.send()
    run = client.get(f"{API}/{stream.run}").json()
    assert (stream.run, "nightly", "demo", "running") == (run["id"], run["name"], run["project"], run["state"])
    assert (50, "2025-10-09T08:53:25.000Z") == (run["last_step"], run["last_step_time"])
    assert "2025-10-09T08:53:20.000Z" == run["started"]
    assert run["ended"] is None
    assert (1, 1) == (run["world_size"], run["ranks_reporting"])
    assert ("float16", "2.13.0", "NVIDIA H200") == (run["precision"], run["torch_version"], run["device_model"])
    assert ({"lr": 3e-4, "precision": "fp16"}, {"team": "speech"}) == (run["config"], run["tags"])
    assert 65536.0 == run["latest"]["scale"]
    assert pytest.approx(run["latest"]["loss"] - 0.05, abs=0.2) == 4.2 * 0.573 + 1.1
    assert (51, 0, 0) == tuple(run["counters"][name] for name in ("applied", "skipped", "nonfinite_steps"))
    assert 51 * 32 == run["counters"]["samples"]
    assert (0, None, {}) == (run["open_incidents"], run["worst"], run["lost"])


def test_a_loss_that_is_no_number_is_said_in_words(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.tell(0, {"loss": float("nan"), "grad_norm": float("inf")})
    stream.send()
    latest = client.get(f"{API}/{stream.run}").json()["latest"]
    assert ("NaN", "Infinity") == (latest["loss"], latest["grad_norm"])


def test_ranks_are_one_run_and_count_their_steps_once(client: httpx.Client) -> None:
    first = Stream(client, world_size=2)
    second = Stream(client, run=first.run, rank=1, world_size=2)
    for stream, last in ((first, 9), (second, 11)):
        train(stream, 0, last)
        stream.send()
    run = client.get(f"{API}/{first.run}").json()
    assert (2, 2, 12, 11) == (run["world_size"], run["ranks_reporting"], run["counters"]["applied"], run["last_step"])
    assert (10 + 12) * 32 == run["counters"]["samples"]


def test_what_was_lost_on_the_way_is_told_by_reason(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send(gaps=[Lost("journal-cap", steps=7, events=2, begin=10, end=20)])
    assert {"journal-cap": {"steps": 7, "events": 2}} == client.get(f"{API}/{stream.run}").json()["lost"]


def test_runs_are_listed_newest_first_and_a_page_token_goes_on_where_the_page_ended(client: httpx.Client) -> None:
    streams = [Stream(client, name=f"run {number}", begin=BEGIN + number * STEP) for number in range(5)]
    for stream in streams:
        train(stream, 0, 1)
        stream.send()
    first = client.get(API, params={"page_size": 2}).json()
    second = client.get(API, params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    third = client.get(API, params={"page_size": 2, "page_token": second["next_page_token"]}).json()
    names = [[run["name"] for run in page["items"]] for page in (first, second, third)]
    assert [["run 4", "run 3"], ["run 2", "run 1"], ["run 0"]] == names
    assert third["next_page_token"] is None


def test_runs_are_chosen_by_state_and_project(client: httpx.Client) -> None:
    for project in ("speech", "vision"):
        stream = Stream(client, project=project)
        train(stream, 0, 1)
        stream.send()
    speech = client.get(API, params={"project": "speech", "state": "running"}).json()["items"]
    assert ["speech"] == [run["project"] for run in speech]
    assert [] == client.get(API, params={"state": "lost"}).json()["items"]


def test_every_way_out_says_the_same_on_postgresql(tmp_path: Path) -> None:
    run, stream = "6f0bd5d0-6bd5-4d09-8e5b-2b4f3a1f0c11", "0" * 32
    answers = []
    with postgresql() as database, serving(tmp_path) as here, serving(tmp_path, database) as there:
        for client in (here, there):
            told = Stream(client, run=run, stream=stream)
            train(told, 0, 60)
            break_down(told, 61, 70)
            told.bye(70)
            told.send()
            wait_until(partial(has_ended, client, run))
        for path in (
            API,
            f"{API}?page_size=1&state=ended&project=demo",
            f"{API}/{run}",
            f"{API}/{run}/series?names=scale,loss,grad.norm:head.weight&from=5&points=20",
            f"{API}/{run}/tensors?stat=grad.norm,grad.nans",
            f"{API}/{run}/events?page_size=7&name=step.skipped&rank=0&from=2&to=66",
            f"{API}/{run}/incidents?state=open",
            "/api/v1/incidents?severity=page&project=demo&verdict=nonfinite-gradient",
            "/metrics",
        ):
            pair = [client.get(path) for client in (here, there)]
            assert [200, 200] == [answer.status_code for answer in pair], path
            answers.append((path, *(without_times(answer.text) for answer in pair)))
        for client in (here, there):
            token = client.get(f"{API}/{run}/events?page_size=20").json()["next_page_token"]
            rest = client.get(f"{API}/{run}/events", params={"page_size": 20, "page_token": token}).json()
            assert (12, None) == (len(rest["items"]), rest["next_page_token"])
            assert 200 == client.get("/metrics/self").status_code
    for path, on_sqlite, on_postgresql in answers:
        assert on_sqlite == on_postgresql, path


def has_ended(client: httpx.Client, run: str) -> bool:
    return bool(client.get(f"{API}/{run}").json()["state"] == "ended")


def without_times(text: str) -> str:
    """What is said, without the moments at which incidents were opened."""
    return re.sub(r'"opened":"[^"]*"', "", text)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"page_token": "nonsense"}, "page_token is 'nonsense'"),
        ({"page_token": "WzEsMl0"}, "which this list did not return"),
        ({"page_size": 0}, "query.page_size is '0'"),
        ({"page_size": 5000}, "less than or equal to 1000"),
        ({"state": "sleeping"}, "'running', 'ended' or 'lost'"),
    ],
)
def test_a_question_that_cannot_be_is_a_problem_that_names_value_and_remedy(
    client: httpx.Client, asked: dict[str, str], said: str
) -> None:
    answer = client.get(API, params=asked)
    assert (422, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert said in answer.json()["detail"]


def test_a_run_that_nobody_reported_is_a_404_that_says_where_to_look(client: httpx.Client) -> None:
    answer = client.get(f"{API}/nothing")
    assert 404 == answer.status_code
    assert "there is no run 'nothing'; GET /api/v1/runs lists all runs" == answer.json()["detail"]


def test_a_run_names_the_verdicts_that_too_few_readings_leave_open(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 50)
    stream.send()
    run = client.get(f"{API}/{stream.run}").json()
    unjudged = {entry["verdict"]: entry for entry in run["not_judged"]}
    assert {
        "verdict": "gradient-spike",
        "reason": "run-too-short",
        "column": "grad_norm",
        "read": 51,
        "needed": 65,
        "within": 16384,
        "text": "51 of 65 gradient norms",
    } == unjudged["gradient-spike"]
    assert {"sign-flip", "stagnation", "fp32-fallback"} <= unjudged.keys()
    assert "gradient-underflow" not in unjudged  # six full readings
    assert "lost-updates" not in unjudged  # the weights are float32
    train(stream, 51, 120)
    stream.send()
    (item,) = client.get(API).json()["items"]
    assert "gradient-spike" not in {entry["verdict"] for entry in item["not_judged"]}


def test_a_run_without_steps_leaves_nothing_open(client: httpx.Client) -> None:
    stream = Stream(client)
    stream.send()
    assert [] == client.get(f"{API}/{stream.run}").json()["not_judged"]


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ({"q": "NIGHT"}, ["night b", "night a"]),
        ({"q": "night lena"}, ["night a"]),
        ({"q": "100%"}, ["100%_done"]),
        ({"q": "speech"}, ["night a"]),
        ({"tag": "team=speech"}, ["night a"]),
        ({"tag": ["team=vision", "kind=x"]}, ["night b"]),
        ({"tag": "team=vis"}, []),
        ({"owner": "lena"}, ["night a"]),
        ({"broken": "true"}, []),
    ],
)
def test_runs_are_found_by_words_tags_and_owner(
    client: httpx.Client, parameters: dict[str, str], names: list[str]
) -> None:
    tags: tuple[dict[str, str], ...] = ({"owner": "lena", "team": "speech"}, {"team": "vision", "kind": "x"}, {})
    for number, (name, of) in enumerate(zip(("night a", "night b", "100%_done"), tags, strict=True)):
        Stream(client, name=name, tags=of, begin=BEGIN + number * STEP).send()
    assert names == [run["name"] for run in client.get(API, params=parameters).json()["items"]]


def test_a_run_is_found_by_the_begin_of_its_id_and_by_its_open_incidents(client: httpx.Client) -> None:
    healthy, broken = Stream(client), Stream(client)
    for stream in (healthy, broken):
        train(stream, 0, 40)
    break_down(broken, 41, 49)
    for stream in (healthy, broken):
        stream.send()
    wait_until(lambda: client.get("/api/v1/incidents").json()["items"])
    assert [healthy.run] == [run["id"] for run in client.get(API, params={"q": healthy.run[:8]}).json()["items"]]
    found = client.get(API, params={"broken": "true"}).json()["items"]
    assert broken.run in [run["id"] for run in found]
    assert all(run["open_incidents"] for run in found)


def test_a_tag_without_a_value_is_refused(client: httpx.Client) -> None:
    assert 422 == client.get(API, params={"tag": "speech"}).status_code


def test_a_collector_shows_what_another_one_has_received(tmp_path: Path) -> None:
    with serving(tmp_path) as client, serving(tmp_path) as other:
        stream = Stream(client, begin=time.time_ns() - 60 * STEP)
        train(stream, 0, 9)
        stream.send()
        before = _of_both(client, other, stream.run)
        assert before == _of_both(client, other, stream.run)
        stream.send()  # a heartbeat changes nothing
        assert before == _of_both(client, other, stream.run)
        stream.send(completed_step=12, completed_time=stream.time(12))
        assert _of_both(client, other, stream.run)["last_step"] == 12
        break_down(stream, 13, 16)
        stream.send()
        wait_until(lambda: _of_both(client, other, stream.run)["open_incidents"] > 0)
        second = Stream(client, run=stream.run, rank=1, world_size=2, begin=stream.begin)
        train(second, 0, 30)
        second.send()
        assert _of_both(client, other, stream.run)["last_step"] == 30
        for ending in (stream, second):
            ending.bye(31)
            ending.send()
        wait_until(lambda: _of_both(client, other, stream.run)["state"] == "ended")


def _of_both(client: httpx.Client, other: httpx.Client, run: str) -> dict[str, Any]:
    """The run in the list and alone, at two collectors, which agree unless the judge was at it meanwhile."""
    while True:
        listed = [reader.get(API).json()["items"][0] for reader in (client, other)]
        alone = [reader.get(f"{API}/{run}").json() for reader in (client, other)]
        if listed == alone == listed[::-1]:
            return dict(listed[0])
