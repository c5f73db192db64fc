"""What meets and what comes back: goodbyes and incidents of one moment, a run id of two projects, a run after its end.

On SQLite through one collector, on PostgreSQL through two.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NoReturn

import pytest
from msgspec.structs import replace

from ammeter import verdicts
from ammeter_server.auth import tokens
from ammeter_server.db.tables import incidents, runs, streams, totals
from ammeter_server.runs import run_chain
from ammeter_server.runs.run_chain import successor
from ammeter_server.runs.run_ids import id_of
from tests.server.callers import bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import BEGIN, Stream, break_down, train, wait_until
from tests.server.judging.shared_place import RANKS, Place, all_at_once, life, ranks

HOUR = 3600 * 10**9


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("at-once")
    with ExitStack() as stack:
        if request.param == "sqlite":
            only = stack.enter_context(guarded(folder))
            yield Place([only.client], only.store)
        else:
            url = request.getfixturevalue("database")
            both = [stack.enter_context(guarded(folder, url)) for _ in range(2)]
            yield Place([place.client for place in both], both[0].store)


def test_goodbyes_of_one_moment_end_the_run_once(place: Place) -> None:
    several = ranks(place)
    for stream in several:
        train(stream, 0, 5)
        stream.send()
        stream.bye(5)
    all_at_once([stream.send for stream in several])
    run = several[0].run
    wait_until(lambda: place.state(run) == "ended")
    counted = {(row.name, row.outcome): row.value for row in place.rows(totals, project=run)}
    assert {("runs", "ended"): 1, ("steps", "applied"): 6} == counted


def test_incidents_of_all_ranks_at_one_moment_are_one_per_verdict(place: Place) -> None:
    several = ranks(place)
    for stream in several:
        train(stream, 0, 40)
        stream.send()
        break_down(stream, 41, 60)
    all_at_once([stream.send for stream in several])
    run = several[0].run
    wait_until(lambda: place.rows(incidents, run=run, verdict="nonfinite-gradient"))
    for stream in several:
        stream.bye(60)
    all_at_once([stream.send for stream in several])
    wait_until(lambda: place.state(run) == "ended")
    found = [(row.verdict, row.number) for row in place.rows(incidents, run=run)]
    assert ("nonfinite-gradient", 1) in found
    assert len(found) == len({verdict for verdict, _ in found})
    opened = [row.value for row in place.rows(totals, project=run, name="incidents", verdict="nonfinite-gradient")]
    assert [1] == opened


def test_a_verdict_that_raises_is_off_for_its_stream_and_everything_else_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise ZeroDivisionError("<b>a fault of ours</b>\n")

    raising = [
        replace(verdict, judge=fail) if verdict.id == "scale-collapse" else verdict
        for verdict in verdicts.STREAM_VERDICTS
    ]
    monkeypatch.setattr(verdicts, "STREAM_VERDICTS", tuple(raising))
    several = ranks(place, 2)
    for stream in several:
        train(stream, 0, 40)
        break_down(stream, 41, 60)
    all_at_once([stream.send for stream in several])
    run = several[0].run
    wait_until(lambda: place.rows(incidents, run=run, verdict="nonfinite-gradient"))
    monkeypatch.undo()
    for stream in several:
        train(stream, 61, 65)
        stream.send()
    assert [65, 65] == [row.last_step for row in place.rows(streams, run=run)]
    told = place.client(0).get(f"/api/v1/runs/{run}").json()["faults"]
    assert {"scale-collapse": "ZeroDivisionError: <b>a fault of ours</b>\n"} == told
    assert [] == place.rows(incidents, run=run, verdict="scale-collapse")


def test_two_projects_that_use_one_run_id_at_the_same_moment_both_get_a_run(place: Place) -> None:
    name = str(uuid.uuid4())
    made = {project: tokens.create(place.store, f"{project} {name}", ("ingest",), project) for project in PROJECTS}
    try:
        for _ in range(8):
            run = str(uuid.uuid4())
            several = {
                (project, number): Stream(place.client(number), run=run, rank=number, headers=bearer(token))
                for number in range(3)
                for project, token in made.items()
            }
            for stream in several.values():
                train(stream, 0, 5)
            all_at_once([stream.send for stream in several.values()])
            rows = {row.project: row for row in place.rows(runs, external_id=run)}
            assert set(PROJECTS) == set(rows)
            assert {run, *(id_of(project, run) for project in PROJECTS)} > {row.id for row in rows.values()}
            assert run in {row.id for row in rows.values()}
            for (project, _), stream in several.items():
                assert [rows[project].id] == [row.run for row in place.rows(streams, id=stream.stream)]
    finally:
        for project in made:
            tokens.revoke(place.store, f"{project} {name}")


PROJECTS = ("ours", "theirs")


def ended_run(place: Place) -> str:
    first = life(place, str(uuid.uuid4()), BEGIN)
    first.bye(5)
    first.send()
    wait_until(lambda: place.state(first.run) == "ended")
    return first.run


def test_a_run_that_comes_back_after_more_than_an_hour_gets_a_successor(place: Place) -> None:
    run = ended_run(place)
    again = life(place, run, BEGIN + 2 * HOUR, 1)
    again.send()
    train(again, 6, 10)
    again.send()
    again.bye(10)
    again.send()
    after = successor(run)
    wait_until(lambda: place.state(after) == "ended")
    assert [(after, 10)] == [(row.run, row.last_step) for row in place.rows(streams, id=again.stream)]
    told = {run_id: place.client(0).get(f"/api/v1/runs/{run_id}").json() for run_id in (run, after)}
    assert ("ended", 5, None, after) == tuple(
        told[run][name] for name in ("state", "last_step", "continues", "continued_by")
    )
    # its own steps 0 to 10 count on behind the six of the run that it continues
    assert (16, run, None) == tuple(told[after][name] for name in ("last_step", "continues", "continued_by"))


def test_all_ranks_of_what_comes_back_meet_in_one_successor_and_its_own_return_in_the_next(place: Place) -> None:
    run = ended_run(place)
    several = [life(place, run, BEGIN + 2 * HOUR, rank, rank=rank, world_size=RANKS) for rank in range(RANKS)]
    all_at_once([stream.send for stream in several])
    for stream in several:
        stream.bye(5)
    all_at_once([stream.send for stream in several])
    after = successor(run)
    assert RANKS == len(place.rows(streams, run=after))
    wait_until(lambda: place.state(after) == "ended")
    life(place, run, BEGIN + 4 * HOUR).send()
    third = successor(after)
    assert 1 == len(place.rows(streams, run=third))
    assert after == place.client(1).get(f"/api/v1/runs/{third}").json()["continues"]


def test_a_run_that_comes_back_within_the_hour_goes_on(place: Place) -> None:
    run = ended_run(place)
    life(place, run, BEGIN + HOUR // 2).send()
    wait_until(lambda: place.state(run) == "running")
    assert 2 == len(place.rows(streams, run=run))
    assert [] == place.rows(runs, id=successor(run))


def test_a_journal_that_comes_late_is_placed_by_when_it_was_written(place: Place) -> None:
    run = ended_run(place)
    life(place, run, BEGIN + 2 * HOUR).send()
    late = life(place, run, BEGIN + HOUR // 2, rank=1)
    late.send()
    assert [run] == [row.run for row in place.rows(streams, id=late.stream)]


def test_a_stream_that_is_heard_again_stays_where_it_is(place: Place) -> None:
    """Its host was away for hours, and the run held to be lost: it never was over."""
    stream = life(place, str(uuid.uuid4()), BEGIN)
    stream.send()
    with place.store.writing() as connection:
        connection.execute(runs.update().where(runs.c.id == stream.run).values(state="lost", ended=BEGIN))
    train(stream, 6, 10)
    stream.begin += 3 * HOUR
    stream.send()
    assert [(stream.run, 10)] == [(row.run, row.last_step) for row in place.rows(streams, id=stream.stream)]


def test_another_projects_token_makes_no_successor_of_a_run(place: Place) -> None:
    run = str(uuid.uuid4())
    made = {name: tokens.create(place.store, f"{name} {run}", ("ingest",), name) for name in ("ours", "theirs")}
    first = life(place, run, BEGIN, headers=bearer(made["ours"]))
    first.bye(5)
    first.send()
    wait_until(lambda: place.state(run) == "ended")
    life(place, run, BEGIN + 2 * HOUR, headers=bearer(made["theirs"])).send()
    assert [] == place.rows(runs, id=successor(run))
    assert ["theirs"] == [row.project for row in place.rows(runs, id=id_of("theirs", run))]
    life(place, run, BEGIN + 2 * HOUR, headers=bearer(made["ours"])).send()
    for name in made:
        tokens.revoke(place.store, f"{name} {run}")
    assert ["ours"] == [row.project for row in place.rows(runs, id=successor(run))]


def test_a_line_goes_on_when_its_first_runs_have_been_deleted(place: Place) -> None:
    run = ended_run(place)
    for number in (1, 2):
        again = life(place, run, BEGIN + 2 * number * HOUR, number)
        again.bye(5)
        again.send()
        (held,) = place.rows(streams, id=again.stream)
        wait_until(lambda at=held.run: place.state(at) == "ended")  # type: ignore[misc]
    live = life(place, run, BEGIN + 6 * HOUR)
    live.send()
    third = successor(successor(successor(run)))
    with place.store.writing() as connection:
        connection.execute(runs.delete().where(runs.c.id.in_([run, successor(run)])))
    train(live, 6, 10)
    live.send()
    rank = life(place, run, BEGIN + 6 * HOUR, 1, rank=1)
    rank.send()
    assert [(third, 10), (third, 5)] == [
        (row.run, row.last_step) for sender in (live, rank) for row in place.rows(streams, id=sender.stream)
    ]


def test_a_line_of_successors_ends(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_chain, "MAX_RUNS_PER_CHAIN", 2)
    run = str(uuid.uuid4())
    for number in range(5):
        began = BEGIN + 2 * number * HOUR
        stream = life(place, run, began)
        stream.bye(5)
        stream.send()
        (held,) = place.rows(streams, id=stream.stream)
        wait_until(lambda at=held.run: place.state(at) == "ended")  # type: ignore[misc]
    line = [run, successor(run), successor(successor(run))]
    assert [1, 1, 3] == [len(place.rows(streams, run=run_id)) for run_id in line]
