"""A run belongs to its project: another project neither changes nor reads it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from sqlalchemy import select

from ammeter.wire.frames import Batch, Bye, Event, Lost
from ammeter_server.auth import tokens
from ammeter_server.db.tables import runs
from ammeter_server.runs.run_ids import id_of, is_reserved
from tests.server.callers import bearer
from tests.server.feeding import Stream, break_down, serving, train, wait_until
from tests.server.ingest.registration.projects import PROJECTS, SCOPES, Place, post

MEANT = {
    "append": (Batch([Event("a.b", 1, 1)]), 0, 100),
    "close": (Batch([Bye("closed", 41, 1)]), 0, 100),
    "probe": (Batch(), 0, 0),
    "probe from its beginning": (Batch(), None, 0),
    "declare lost": (Batch(gaps=[Lost("torn", 1, 1, 0, 50)]), None, 50),
    "declare lost behind it": (Batch([Event("a.b", 1, 1)]), 10**6, 10**6 + 100),
}
"""What is sent, and from where to where behind the stream's end; from its beginning where that is None."""


@pytest.mark.parametrize("name", MEANT)
def test_another_projects_token_reaches_no_stream(place: Place, name: str) -> None:
    stream = place.stream("ours")
    batch, begin, end = MEANT[name]
    begin, end = (0, end) if begin is None else (stream.offset + begin, stream.offset + end)
    before = place.all_of(stream.run)
    answer = post(stream, place.tokens["theirs"], batch, begin, end)
    assert (404, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert "offset" not in answer.json()
    assert before == place.all_of(stream.run)
    assert [stream.run] == place.lies(stream)
    train(stream, 41, 45)
    stream.send()
    assert 45 == place.get(f"/api/v1/runs/{stream.run}", "ours").json()["last_step"]


def test_a_replay_of_older_batches_with_another_projects_token_is_refused(place: Place) -> None:
    stream = place.stream("ours")
    first = Batch([stream.hello()])
    for _ in range(2):
        assert 404 == post(stream, place.tokens["theirs"], first, 0, 100).status_code
    assert [stream.run] == place.lies(stream)
    again = post(stream, place.tokens["ours"], first, 0, 100)
    assert (200, stream.offset) == (again.status_code, again.json()["offset"])


def test_a_rotated_token_of_the_same_project_goes_on_and_the_revoked_one_does_not(place: Place) -> None:
    name = uuid.uuid4().hex
    old = tokens.create(place.store, name, SCOPES, "ours")
    stream = Stream(place.client, headers=bearer(old))
    train(stream, 0, 5)
    stream.send()
    tokens.revoke(place.store, name)
    stream.headers = bearer(place.token("ours"))
    train(stream, 6, 9)
    stream.send()
    assert 9 == place.get(f"/api/v1/runs/{stream.run}", "ours").json()["last_step"]
    wait_until(lambda: 401 == post(stream, old, Batch(), stream.offset, stream.offset).status_code)


@pytest.mark.parametrize("first", ["ours", "all"])
def test_a_token_of_every_project_and_one_of_the_runs_project_go_on_for_each_other(place: Place, first: str) -> None:
    stream = place.stream(first, project="ours")
    for number, whose in enumerate(["ours", "all", "ours", "all"]):
        stream.headers = bearer(place.token(None if whose == "all" else whose))
        train(stream, 41 + number, 41 + number)
        stream.send()
    assert [stream.run] == place.lies(stream)
    assert 404 == post(stream, place.tokens["theirs"], Batch(), stream.offset, stream.offset).status_code


def test_two_projects_that_use_one_run_id_have_a_run_each(place: Place) -> None:
    ours = place.stream("ours", name="of us", project="said")
    theirs = place.stream("theirs", run=ours.run, name="of them", project="said")
    derived = id_of("theirs", ours.run)
    assert ([ours.run], [derived]) == (place.lies(ours), place.lies(theirs))
    for whose, named, run in (("ours", "of us", ours.run), ("theirs", "of them", derived)):
        for asked in {ours.run, run}:
            document = place.get(f"/api/v1/runs/{asked}", whose).json()
            assert (run, ours.run, named, whose) == tuple(document[n] for n in ("id", "external_id", "name", "project"))
        listed = place.get("/api/v1/runs", whose).json()["items"]
        assert [run] == [run_item["id"] for run_item in listed if run_item["external_id"] == ours.run]
        both = {run_id: place.get(f"/api/v1/runs/{run_id}", "all").json()["name"] for run_id in (ours.run, derived)}
        assert {ours.run: "of us", derived: "of them"} == both
    assert 404 == place.get(f"/api/v1/runs/{derived}", "ours").status_code
    for stream in (ours, theirs):
        train(stream, 41, 60)
        stream.bye(60)
        stream.send()
    wait_until(
        lambda: {"ended"} == {place.get(f"/api/v1/runs/{ours.run}", project).json()["state"] for project in PROJECTS}
    )


def test_neither_of_two_projects_reaches_the_others_stream_of_the_same_run_id(place: Place) -> None:
    ours = place.stream("ours")
    theirs = place.stream("theirs", run=ours.run)
    for stream, other in ((ours, "theirs"), (theirs, "ours")):
        for batch, more in ((Batch(), 0), (Batch([Bye("closed", 1, 1)]), 100)):
            assert 404 == post(stream, place.tokens[other], batch, stream.offset, stream.offset + more).status_code
        train(stream, 41, 42)
        stream.send()


@pytest.mark.parametrize(
    "path",
    [
        "/series?names=loss",
        "/tensors",
        "/tensors/matrix",
        "/spectrum",
        "/what-if",
        "/events",
        "/incidents",
        "/live",
        "/compare/{run}",
    ],
)
def test_a_reader_finds_the_run_of_its_project_by_the_id_that_its_processes_use(place: Place, path: str) -> None:
    ours = place.stream("ours")
    theirs = Stream(place.client, run=ours.run, headers=bearer(place.tokens["theirs"]))
    train(theirs, 0, 9)
    theirs.send()
    derived = id_of("theirs", ours.run)
    told, direct, first = (
        place.get(f"/api/v1/runs/{run}{path.format(run=run)}", whose)
        for run, whose in ((ours.run, "theirs"), (derived, "theirs"), (ours.run, "ours"))
    )
    assert (200, 200, 200) == (told.status_code, direct.status_code, first.status_code)
    if path not in ("/tensors", "/spectrum", "/what-if", "/live", "/incidents"):
        assert told.text == direct.text != first.text
    if "etag" in told.headers and told.text != first.text:
        assert told.headers["etag"] != first.headers["etag"]


def test_incidents_and_metrics_of_two_runs_with_one_id_are_told_apart(place: Place) -> None:
    ours = place.stream("ours")
    theirs = place.stream("theirs", run=ours.run)
    break_down(theirs, 41, 60)
    theirs.send()
    derived = id_of("theirs", ours.run)
    found = wait_until(lambda: place.get(f"/api/v1/runs/{ours.run}/incidents", "theirs").json()["items"])
    assert {derived} == {incident["id"].partition(".")[0] for incident in found}
    assert [] == place.get(f"/api/v1/runs/{ours.run}/incidents", "ours").json()["items"]
    rest = found[0]["id"].partition(".")[2]
    for asked in (found[0]["id"], f"{ours.run}.{rest}"):
        assert found[0]["id"] == place.get(f"/api/v1/incidents/{asked}", "theirs").json()["id"]
        assert 404 == place.get(f"/api/v1/incidents/{asked}", "ours").status_code
    metrics = place.get("/metrics", "all").text
    for run, project in ((ours.run, "ours"), (derived, "theirs")):
        (line,) = (line for line in metrics.splitlines() if line.startswith("ammeter_run_info{") and run in line)
        assert f'project="{project}"' in line


def test_a_baseline_is_the_projects_own_run_of_that_id(place: Place) -> None:
    ours = place.stream("ours")
    theirs = place.stream("theirs", run=ours.run)
    later = place.stream("theirs", tags={"baseline": ours.run}, begin=theirs.begin + 10**9)

    def compared() -> Any:
        with place.store.reading() as connection:
            (evaluation,) = connection.execute(select(runs.c.evaluation).where(runs.c.id == later.run)).scalars()
        return evaluation.get("baseline", {}).get("id")

    assert id_of("theirs", ours.run) == wait_until(compared)


def test_without_tokens_everybody_on_the_machine_is_one_sender_of_every_project(tmp_path: Any) -> None:
    with serving(tmp_path) as client:
        first = Stream(client, project="ours")
        second = Stream(client, project="theirs", run=first.run)
        for stream in (first, second):
            train(stream, 0, 5)
            stream.send()
            train(stream, 6, 9)
            stream.send()
        listed = {run["project"]: run for run in client.get("/api/v1/runs").json()["items"]}
        assert {"ours": first.run, "theirs": id_of("theirs", first.run)} == {
            project: run["id"] for project, run in listed.items()
        }
        assert {(9, first.run)} == {(run["last_step"], run["external_id"]) for run in listed.values()}


def test_ids_of_two_projects_differ_and_no_generator_makes_them() -> None:
    run = str(uuid.uuid4())
    made = {id_of(project, name) for project in ("a", "b", "ab", "") for name in (run, "b" + run)}
    assert 8 == len(made)
    assert all(is_reserved(run_id) and str(uuid.UUID(run_id)) == run_id for run_id in made)
    assert not any(is_reserved(str(one)) for one in (uuid.uuid4(), uuid.uuid1(), uuid.uuid5(uuid.NAMESPACE_DNS, "x")))
    assert not is_reserved("00000000-0000-0000-0000-000000000000")
