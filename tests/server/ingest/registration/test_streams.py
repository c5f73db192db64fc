"""A stream belongs to its sender, whatever its run, its hello or its beginning."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ammeter.wire.frames import Batch, Event, Hello, Lost
from ammeter_server.db import run_deletion
from ammeter_server.db.tables import runs
from ammeter_server.http.limits import rate
from ammeter_server.runs.run_ids import id_of
from tests.server.callers import bearer, guarded
from tests.server.feeding import SCHEMA, Stream, train
from tests.server.ingest.registration.projects import Place, post, tokened


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
