from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter_server.db import Store, connect, migrations
from ammeter_server.db.tables import runs
from ammeter_server.runs.run_chain import MAX_PAUSE_NS, MAX_RUNS_PER_CHAIN, assign_run, successor
from ammeter_server.runs.run_ids import id_of

RUN = str(uuid.uuid4())
ENDED = 10**18


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'c.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def add(store: Store, run: str, state: str = "ended", ended: int | None = ENDED, project: str = "ours") -> None:
    with store.writing() as connection:
        connection.execute(runs.insert().values(id=run, state=state, ended=ended, project=project))


def placed(store: Store, began: int | None, project: str | None = None) -> str:
    with store.reading() as connection:
        return assign_run(connection, RUN, uuid.uuid4().hex, began, project, "ours").run


def line(length: int) -> list[str]:
    chain = [RUN]
    while len(chain) < length:
        chain.append(successor(chain[-1]))
    return chain


def test_the_line_of_a_run_is_the_same_for_everybody_and_never_comes_round() -> None:
    assert line(5) == line(5)
    assert 40 == len(set(line(40)))
    assert str(uuid.UUID(successor(RUN))) == successor(RUN)


def test_a_run_that_nobody_knows_is_where_it_says(store: Store) -> None:
    assert RUN == placed(store, ENDED)


@pytest.mark.parametrize(
    ("began", "at"), [(ENDED - 1, 0), (ENDED + MAX_PAUSE_NS, 0), (ENDED + MAX_PAUSE_NS + 1, 1), (None, 0)]
)
def test_over_an_hour_after_its_end_there_is_a_successor(store: Store, began: int | None, at: int) -> None:
    add(store, RUN)
    assert line(2)[at] == placed(store, began)


@pytest.mark.parametrize("state", ["running", "ended", "lost"])
def test_only_a_run_that_is_over_has_one(store: Store, state: str) -> None:
    add(store, RUN, state, None if state == "running" else ENDED)
    assert line(2)[state != "running"] == placed(store, ENDED + 2 * MAX_PAUSE_NS)


def test_another_projects_run_is_no_part_of_the_line(store: Store) -> None:
    add(store, RUN, project="theirs")
    assert id_of("ours", RUN) == placed(store, ENDED + 2 * MAX_PAUSE_NS, "ours")
    assert successor(RUN) == placed(store, ENDED + 2 * MAX_PAUSE_NS, "theirs")


def test_another_projects_run_in_the_place_of_a_successor_is_none(store: Store) -> None:
    add(store, RUN)
    add(store, successor(RUN), project="theirs")
    for project in ("ours", None):
        assert id_of("ours", successor(RUN)) == placed(store, ENDED + 2 * MAX_PAUSE_NS, project)


def test_a_successor_names_the_run_that_it_follows_wherever_that_lies(store: Store) -> None:
    add(store, RUN, project="theirs")
    with store.writing() as connection:
        lies = {"id": id_of("ours", RUN), "external_id": RUN, "project": "ours"}
        connection.execute(runs.insert().values(**lies, state="ended", ended=ENDED))
    with store.reading() as connection:
        assigned = assign_run(connection, RUN, uuid.uuid4().hex, ENDED + 2 * MAX_PAUSE_NS, "ours")
    assert (successor(RUN), successor(RUN), lies["id"]) == (assigned.run, assigned.external, assigned.after)


def test_the_line_begins_where_the_first_run_is_that_was_not_deleted(store: Store) -> None:
    add(store, line(4)[3])
    assert line(4)[3] == placed(store, ENDED)
    assert line(5)[4] == placed(store, ENDED + 2 * MAX_PAUSE_NS)


def test_the_line_has_an_end(store: Store) -> None:
    for run in line(MAX_RUNS_PER_CHAIN + 5):
        add(store, run)
    assert line(MAX_RUNS_PER_CHAIN + 1)[-1] == placed(store, ENDED + 2 * MAX_PAUSE_NS)
