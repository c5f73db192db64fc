"""A stream belongs to its sender, and a run to its project, on both databases: whoever else sends or asks changes and
learns nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from ammeter.wire import codec, frames
from ammeter.wire.frames import Batch, Bye, Event, Hello, Lost
from ammeter_server.api import live
from ammeter_server.auth import tokens
from ammeter_server.db import Store, run_deletion
from ammeter_server.db.tables import metadata, runs, streams
from ammeter_server.http.limits import rate
from ammeter_server.runs.run_ids import id_of, is_reserved
from tests.server.callers import Guarded, bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import SCHEMA, Stream, break_down, serving, train, wait_until

PROJECTS = ("ours", "theirs")
SCOPES = ("ingest", "read")


@dataclass
class Place:
    """A collector with a token of each project, and of all of them."""

    client: httpx.Client
    store: Store
    tokens: dict[str, str] = field(default_factory=dict)

    def token(self, project: str | None) -> str:
        """Another one of this project."""
        return tokens.create(self.store, uuid.uuid4().hex, SCOPES, project)

    def stream(self, whose: str, **said: Any) -> Stream:
        """One of a project's that is open, with steps 0 to 40."""
        stream = Stream(self.client, headers=bearer(self.tokens[whose]), **said)
        train(stream, 0, 40)
        stream.send()
        return stream

    def get(self, path: str, whose: str) -> httpx.Response:
        return self.client.get(path, headers=bearer(self.tokens[whose]))

    def lies(self, stream: Stream) -> list[str]:
        """The runs that hold it."""
        with self.store.reading() as connection:
            return list(connection.execute(select(streams.c.run).where(streams.c.id == stream.stream)).scalars())

    def all_of(self, run: str) -> dict[str, list[Any]]:
        """What ingest has stored of a run, and nothing of when a shipper was heard last."""
        found = {}
        with self.store.reading() as connection:
            for name in ("streams", "schemas", "chunks", "events", "findings"):
                table = metadata.tables[name]
                rows = connection.execute(select(table).where(table.c.run == run))
                found[name] = sorted(map(repr, rows))
        return found


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    url = "" if request.param == "sqlite" else request.getfixturevalue("database")
    with pytest.MonkeyPatch.context() as patch, guarded(tmp_path_factory.mktemp("senders"), url) as guard:
        patch.setattr(live, "MAX_ANSWER_SECONDS", 0.01)
        yield tokened(guard)


def tokened(guard: Guarded) -> Place:
    place = Place(guard.client, guard.store)
    place.tokens = {project: place.token(project) for project in PROJECTS} | {"all": place.token(None)}
    return place


def post(stream: Stream, token: str, batch: Batch, offset: int, end: int) -> httpx.Response:
    path = f"/api/v1/runs/{stream.run}/streams/{stream.stream}/frames?offset={offset}&end={end}"
    headers = {"Content-Type": frames.CONTENT_TYPE, **bearer(token)}
    return stream.client.post(path, content=codec.encode_batch(batch), headers=headers)


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
            told = place.get(f"/api/v1/runs/{asked}", whose).json()
            assert (run, ours.run, named, whose) == tuple(told[n] for n in ("id", "external_id", "name", "project"))
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
    if path not in ("/tensors", "/spectrum", "/live", "/incidents"):
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


def test_a_stream_whose_hello_changes_stays_where_it_is(place: Place) -> None:
    for whose in ("ours", "all"):
        stream = place.stream(whose, project="ours", name="first")
        stream.items.append(
            Hello(stream.run, stream.stream, SCHEMA, rank=3, world_size=9, name="second", project="theirs", started=1)
        )
        train(stream, 41, 45)
        stream.send()
        train(stream, 46, 50)
        stream.send()
        assert [stream.run] == place.lies(stream)
        told = place.get(f"/api/v1/runs/{stream.run}", "all").json()
        assert ("first", "ours", 50) == (told["name"], told["project"], told["last_step"])
        assert 404 == place.get(f"/api/v1/runs/{stream.run}", "theirs").status_code


def test_two_senders_of_one_stream_apply_each_frame_once(place: Place) -> None:
    first = place.stream("ours")
    second = Stream(
        place.client,
        run=first.run,
        stream=first.stream,
        offset=first.offset,
        headers=bearer(place.token("ours")),
    )
    begin = first.offset
    for stream in (first, second):
        train(stream, 41, 45)
    first.send()
    answer = post(second, place.tokens["ours"], Batch([Event("a.b", 44, 1)]), begin, begin + 5)
    assert (200, first.offset) == (answer.status_code, answer.json()["offset"])
    answer = post(second, place.tokens["ours"], Batch([Event("a.b", 44, 1)]), begin, first.offset + 5)
    assert (409, first.offset) == (answer.status_code, answer.json()["offset"])
    told = place.get(f"/api/v1/runs/{first.run}", "ours").json()
    assert (45, 46) == (told["last_step"], told["counters"]["applied"])


@pytest.mark.parametrize("project", ["ours", None])
def test_a_stream_of_a_run_that_was_deleted_goes_on_in_a_new_one(place: Place, project: str | None) -> None:
    stream = place.stream("ours" if project else "all", project="ours")
    with place.store.writing() as connection:
        connection.execute(runs.delete().where(runs.c.id == stream.run))
    place.stream("theirs", run=stream.run)
    answer = post(stream, stream.headers["Authorization"].split()[1], Batch([Event("a.b", 1, 1)]), stream.offset, 10**4)
    assert (409, 0) == (answer.status_code, answer.json()["offset"])
    stream.offset = 0
    train(stream, 41, 45)
    stream.send()
    assert [id_of("ours", stream.run)] == place.lies(stream)


def test_a_run_that_one_project_had_deleted_takes_nothing_more_and_keeps_no_other_project_from_its_id(
    place: Place,
) -> None:
    stream = place.stream("ours")
    assert run_deletion.delete(place.store, stream.run, "me", 1)
    answer = post(stream, place.tokens["ours"], Batch([stream.hello()]), 0, 100)
    assert 410 == answer.status_code, answer.text
    theirs = place.stream("theirs", run=stream.run)
    assert [id_of("theirs", stream.run)] == place.lies(theirs)
    assert 410 == post(stream, place.tokens["ours"], Batch([stream.hello()]), 0, 100).status_code
    assert run_deletion.delete(place.store, id_of("theirs", stream.run), "me", 1)
    assert 410 == post(theirs, place.tokens["theirs"], Batch([theirs.hello()]), 0, 100).status_code


def test_losses_do_not_bring_a_deleted_run_back(place: Place) -> None:
    stream = place.stream("all", project="ours")
    assert run_deletion.delete(place.store, stream.run, "me", 1)
    gap = Batch(gaps=[Lost("journal-deleted", 3, 0, 0, 1000)])
    assert 410 == post(stream, place.tokens["all"], gap, 0, 1000).status_code
    assert 410 == post(stream, place.tokens["all"], Batch([stream.hello()]), 0, 1000).status_code
    assert [] == place.lies(stream)


def test_an_id_that_only_the_collector_gives_cannot_be_taken_beforehand(place: Place) -> None:
    run = str(uuid.uuid4())
    for whose in ("theirs", "all"):
        taken = Stream(place.client, run=id_of("ours", run), headers=bearer(place.tokens[whose]))
        answer = post(taken, place.tokens[whose], Batch([taken.hello()]), 0, 100)
        assert 422 == answer.status_code
        assert "only the collector assigns" in answer.json()["detail"]
    place.stream("theirs", run=run)
    assert [id_of("ours", run)] == place.lies(place.stream("ours", run=run))


def test_a_stream_that_begins_with_losses_is_its_projects_too(place: Place) -> None:
    run = str(uuid.uuid4())
    place.stream("theirs", run=run)
    for whose in ("ours", "all"):
        stream = Stream(place.client, run=run, project="ours", headers=bearer(place.tokens[whose]))
        gap = Batch(gaps=[Lost("journal-deleted", 3, 0, 0, 1000)])
        assert 200 == post(stream, place.tokens[whose], gap, 0, 1000).status_code
        stream.offset = 1000
        stream.items.append(stream.hello())
        train(stream, 41, 45)
        stream.send()
        assert 1 == len(place.lies(stream))
        if whose == "ours":
            assert [id_of("ours", run)] == place.lies(stream)


@contextmanager
def hastily() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate, "BURST_REQUESTS", 20.0)
        patch.setattr(rate, "REQUESTS_PER_SECOND", 0.001)
        yield


def test_who_asks_without_end_with_another_projects_token_keeps_the_sender_from_nothing(tmp_path: Any) -> None:
    with hastily(), guarded(tmp_path) as guard:
        place = tokened(guard)
        stream = place.stream("ours")
        answers = {post(stream, place.tokens["theirs"], Batch(), 0, 0).status_code for _ in range(40)}
        assert {404, 429} == answers
        train(stream, 41, 45)
        stream.send()


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
