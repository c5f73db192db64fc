"""A run that is deleted is gone: from every table, from SQLite's bytes, and for its shippers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.frames import Bye, Event, Hello
from ammeter_server.__main__ import main
from ammeter_server.auth import tokens
from ammeter_server.db import Store, connect, run_deletion
from ammeter_server.db.tables import audit, deleted_runs, metadata, runs, streams, totals
from ammeter_server.maintenance.compaction import compact
from tests.agent.ship_parts import SCHEMA, row
from tests.server.callers import Guarded, bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import Stream, break_down, train, wait_until

HIDDEN = "correct" + "-horse-" + "battery"
"""What no redactor can tell from a word."""

NOBODY = ("json://127.0.0.1:9/",)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    with postgresql() if request.param == "postgresql" else nullcontext("") as url:
        yield url


@pytest.fixture
def place(database: str, tmp_path: Path) -> Iterator[Guarded]:
    with guarded(tmp_path, database, notify=NOBODY) as place:
        yield place


def leaking(place: Guarded, headers: dict[str, str]) -> Stream:
    """A run with findings, incidents, events and messages, in which a secret is said everywhere."""
    stream = Stream(place.client, headers=headers, name=f"run {HIDDEN}", config={"note": HIDDEN}, tags={"note": HIDDEN})
    train(stream, 0, 40)
    stream.say("note.said", 20, note=HIDDEN)
    break_down(stream, 41, 60)
    assert 200 == stream.send().status_code
    path = f"/api/v1/runs/{stream.run}/incidents"
    (incident, *_) = wait_until(lambda: place.client.get(path, headers=headers).json()["items"])
    wait_until(
        lambda: place.client.get(f"/api/v1/incidents/{incident['id']}/deliveries", headers=headers).json()["items"]
    )
    change = headers | {"X-Ammeter-Request": "test"}
    assert 200 == place.client.post(f"/api/v1/incidents/{incident['id']}/acknowledge", headers=change).status_code
    stream.bye(60)
    assert 200 == stream.send().status_code
    return stream


def everywhere(store: Store, run: str) -> list[str]:
    """The tables that say anything of a run."""
    found = []
    with store.reading() as connection:
        for table in metadata.sorted_tables:
            rows = connection.execute(select(table)).all()
            found += [table.name for row in rows if any(run in str(value) or HIDDEN in str(value) for value in row)]
    return sorted(set(found))


def counted(store: Store) -> list[Any]:
    with store.reading() as connection:
        return list(connection.execute(select(totals).order_by(*totals.primary_key)).all())


def test_nothing_is_left_of_a_run_that_is_deleted_and_others_stay(place: Guarded) -> None:
    admin = tokens.create(place.store, f"admin {time.time_ns()}", ("admin",))
    headers = bearer(admin)
    stream = leaking(place, headers)
    other = Stream(place.client, headers=headers, name="other")
    train(other, 0, 40)
    assert 200 == other.send().status_code
    compact(place.store, stream.run, stream.stream, "me")
    assert {"runs", "streams", "events", "incidents", "outbox", "findings"} <= set(everywhere(place.store, stream.run))
    answer = place.client.delete(f"/api/v1/runs/{stream.run}", headers=headers)
    assert (204, b"") == (answer.status_code, answer.content)
    assert ["audit", "deleted_runs"] == everywhere(place.store, stream.run)
    assert 404 == place.client.get(f"/api/v1/runs/{stream.run}", headers=headers).status_code
    assert 200 == place.client.get(f"/api/v1/runs/{other.run}", headers=headers).status_code
    with place.store.reading() as connection:
        deeds = connection.execute(select(audit).order_by(audit.c.at.desc())).all()
        assert 1 == connection.execute(select(func.count()).select_from(streams)).scalar_one()
    assert ("run.deleted", stream.run, "") == (deeds[0].action, deeds[0].subject, deeds[0].detail)
    assert deeds[0].actor.startswith("admin")
    assert [""] == list({deed.detail for deed in deeds if deed.subject.startswith(f"{stream.run}.")})
    assert 204 == place.client.delete(f"/api/v1/runs/{other.run}", headers=headers).status_code


def test_totals_of_the_fleet_do_not_shrink(place: Guarded) -> None:
    headers = bearer(tokens.create(place.store, f"admin {time.time_ns()}", ("admin",)))
    stream = leaking(place, headers)
    wait_until(lambda: counted(place.store))
    before = {tuple(total[:-1]): total.value for total in counted(place.store)}
    place.client.delete(f"/api/v1/runs/{stream.run}", headers=headers)
    after = {tuple(total[:-1]): total.value for total in counted(place.store)}
    assert [] == [key for key, value in before.items() if after.get(key, 0) < value]


def test_only_an_admin_of_every_project_deletes(place: Guarded) -> None:
    owner = bearer(tokens.create(place.store, f"owner {time.time_ns()}", ("admin",)))
    reader = bearer(tokens.create(place.store, f"reader {time.time_ns()}", ("read", "ingest")))
    bound = bearer(tokens.create(place.store, f"bound {time.time_ns()}", ("admin",), "demo"))
    stream = Stream(place.client, headers=owner)
    train(stream, 0, 3)
    stream.send()
    path = f"/api/v1/runs/{stream.run}"
    assert [401, 403, 403] == [
        place.client.delete(path, headers=headers).status_code for headers in ({}, reader, bound)
    ]
    assert 404 == place.client.delete("/api/v1/runs/nothing", headers=owner).status_code
    assert 200 == place.client.get(path, headers=owner).status_code
    assert [204, 204] == [place.client.delete(path, headers=owner).status_code for _ in range(2)]


def test_a_page_of_another_site_cannot_delete(tmp_path: Path) -> None:
    with guarded(tmp_path, notify=NOBODY) as place:
        stream = Stream(place.client)
        train(stream, 0, 3)
        stream.send()
        path = f"/api/v1/runs/{stream.run}"
        assert 403 == place.client.delete(path).status_code
        assert 204 == place.client.delete(path, headers={"X-Ammeter-Request": "test"}).status_code


def test_a_shipper_does_not_bring_a_deleted_run_back(place: Guarded, tmp_path: Path) -> None:
    token = tokens.create(place.store, f"both {time.time_ns()}", ("admin",))
    run, stream = "5b0c6f0e-93a5-5c59-9b5f-0f5a3f1f7d99", "5d3c9bb1f7a64a19a5ad5b9e5d3c9b99"
    writer = Journal(tmp_path / "ammeter" / run / stream)
    writer.hello(Hello(run=run, stream=stream, schema=SCHEMA, name="live", started=time.time_ns()))
    writer.append(row(0), Event("note.said", 0, time.time_ns(), {"note": HIDDEN}))
    url = str(place.client.base_url)
    first = ship(writer.folder, url, token, "--once")
    assert 0 == first.returncode, first.stdout
    assert 204 == place.client.delete(f"/api/v1/runs/{run}", headers=bearer(token)).status_code
    writer.append(row(1), Bye("closed", 1, time.time_ns()))
    writer.close()
    before = journal.end_of(writer.folder)
    second = ship(writer.folder, url, token, "--idle-exit")
    assert "was deleted; nothing of it is stored" in second.stdout
    assert f"its journal stays in {writer.folder}" in second.stdout
    assert before == journal.end_of(writer.folder)
    assert ["audit", "deleted_runs"] == everywhere(place.store, run)
    answer = place.client.post(
        f"/api/v1/runs/{run}/streams/{stream}/frames?offset=0&end=0",
        headers=bearer(token) | {"Content-Type": "application/vnd.ammeter.batch+msgpack"},
        content=b"\x80",
    )
    assert (410, "Gone") == (answer.status_code, answer.json()["title"])


def ship(folder: Path, url: str, token: str, how: str) -> subprocess.CompletedProcess[str]:
    """The shipper as it runs beside a training; it leaves by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ammeter.shipper.process", str(folder), how],
        env=os.environ | {"AMMETER_URL": url, "AMMETER_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("how", ["api", "command"])
def test_sqlite_forgets_the_bytes(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with guarded(tmp_path, notify=NOBODY) as place:
        headers = {"X-Ammeter-Request": "test"}
        stream = leaking(place, headers)
        compact(place.store, stream.run, stream.stream, "me")
        assert holding(tmp_path)
        if how == "api":
            assert 204 == place.client.delete(f"/api/v1/runs/{stream.run}", headers=headers).status_code
        else:
            assert 0 == main(["run", "delete", stream.run, "--database-url", f"sqlite:///{tmp_path / 'collector.db'}"])
            assert f"run {stream.run} is deleted" in capsys.readouterr().out
        assert [] == holding(tmp_path)
        with place.store.reading() as connection:
            assert [stream.run] == list(connection.execute(select(deleted_runs.c.run)).scalars())
            assert [] == list(connection.execute(select(runs.c.id)).scalars())
    assert [] == holding(tmp_path)


def holding(folder: Path) -> list[str]:
    """The files of the database in which the secret is."""
    return [file.name for file in folder.glob("collector.db*") if HIDDEN.encode() in file.read_bytes()]


def test_a_run_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert 2 == main(["run", "delete", "nothing", "--database-url", f"sqlite:///{tmp_path / 'c.db'}"])
    assert "there is no run 'nothing'" in capsys.readouterr().err


def test_what_an_interrupted_deletion_left_goes_the_next_time(tmp_path: Path) -> None:
    with guarded(tmp_path, notify=NOBODY) as place:
        stream = leaking(place, {"X-Ammeter-Request": "test"})
        store = connect(f"sqlite:///{tmp_path / 'collector.db'}")
        with store.writing() as connection:
            assert run_deletion._delete_rows(connection, stream.run, "me", 1)
        assert {"events"} <= set(everywhere(store, stream.run))
        assert run_deletion.delete(store, stream.run, "me", 2)
        assert ["audit", "deleted_runs"] == everywhere(store, stream.run)
        store.close()


def test_runs_that_were_compared_with_a_deleted_one_tell_nothing_of_it(place: Guarded) -> None:
    headers = bearer(tokens.create(place.store, f"admin {time.time_ns()}", ("admin",)))
    name = f"baseline {HIDDEN}"
    base = Stream(place.client, headers=headers, name=name, config={"lr": 0.1, "note": HIDDEN}, tags={"note": HIDDEN})
    ended = Stream(place.client, headers=headers, name="ended", tags={"baseline": base.run})
    going = Stream(place.client, headers=headers, name="going", tags={"baseline": base.run})
    for trained in (base, ended, going):
        train(trained, 0, 60)
        if trained is not going:
            trained.bye(60)
        assert 200 == trained.send().status_code

    def found(run: str) -> list[str]:
        listed = place.client.get(f"/api/v1/runs/{run}/incidents", headers=headers).json()["items"]
        return [incident["verdict"] for incident in listed]

    wait_until(lambda: all("not-comparable" in found(other_run.run) for other_run in (ended, going)))
    assert {"incidents", "outbox", "runs"} <= set(everywhere(place.store, HIDDEN))
    assert 204 == place.client.delete(f"/api/v1/runs/{base.run}", headers=headers).status_code
    assert ["audit", "deleted_runs", "runs"] == everywhere(place.store, base.run)  # their own tags name it
    assert [] == everywhere(place.store, HIDDEN)
    train(going, 61, 200)
    assert 200 == going.send().status_code
    wait_until(lambda: judged(place.store, going.run))
    assert [] == everywhere(place.store, HIDDEN)
    assert [[], []] == [found(other_run.run) for other_run in (ended, going)]
    for trained in (ended, going):
        place.client.delete(f"/api/v1/runs/{trained.run}", headers=headers)


def judged(store: Store, run: str) -> bool:
    """Whether all that has come of the run has been judged."""
    with store.reading() as connection:
        version = connection.execute(select(func.sum(streams.c.version)).where(streams.c.run == run)).scalar_one()
        return bool(version == connection.execute(select(runs.c.judged_version).where(runs.c.id == run)).scalar_one())


def test_a_judgement_that_has_read_a_deleted_baseline_is_not_written(tmp_path: Path) -> None:
    with guarded(tmp_path, notify=NOBODY) as place:
        headers = {"X-Ammeter-Request": "test"}
        base = Stream(place.client, headers=headers, name="base", config={"note": HIDDEN})
        other = Stream(place.client, headers=headers, name="other", tags={"baseline": base.run})
        for sender in (base, other):
            train(sender, 0, 40)
            assert 200 == sender.send().status_code
        wait_until(lambda: judged(place.store, other.run))
        with place.store.writing() as connection:
            connection.execute(runs.update().where(runs.c.id == other.run).values(claimed_by="a slow judge"))
        assert run_deletion.delete(place.store, base.run, "me", 1)
        with place.store.reading() as connection:
            row = connection.execute(select(runs).where(runs.c.id == other.run)).one()
        assert row.claimed_by != "a slow judge"


def test_a_run_that_continues_a_deleted_one_was_compared_with_its_settings(tmp_path: Path) -> None:
    with guarded(tmp_path, notify=NOBODY) as place:
        headers = {"X-Ammeter-Request": "test"}
        first = Stream(place.client, headers=headers, name="first", config={"note": HIDDEN})
        train(first, 0, 40)
        first.bye(40)
        assert 200 == first.send().status_code
        path = f"/api/v1/runs/{first.run}"
        wait_until(lambda: place.client.get(path).json()["state"] == "ended")
        second = Stream(place.client, run=first.run, headers=headers, name="second", begin=first.begin + 10**13)
        train(second, 41, 80)
        assert 200 == second.send().status_code
        behind = place.client.get(path).json()["continued_by"]
        assert behind
        other = Stream(place.client, headers=headers, name="other", tags={"baseline": behind})
        train(other, 0, 80)
        assert 200 == other.send().status_code
        wait_until(lambda: "runs" in everywhere(place.store, other.run) and judged(place.store, other.run))
        wait_until(lambda: HIDDEN in str(evaluation(place.store, other.run)))
        assert 204 == place.client.delete(path, headers=headers).status_code
        assert [] == everywhere(place.store, HIDDEN)


def evaluation(store: Store, run: str) -> Any:
    with store.reading() as connection:
        return connection.execute(select(runs.c.evaluation).where(runs.c.id == run)).scalar_one()
