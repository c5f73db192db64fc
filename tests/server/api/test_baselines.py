"""Pinned baselines on both databases: which run applies, what deletion leaves, and who may see them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.auth import tokens
from ammeter_server.db import Store, partitions
from ammeter_server.db.queries import baselines as query
from ammeter_server.db.step_tables import day_of
from ammeter_server.db.tables import runs
from ammeter_server.runs.baselines import find_baseline
from tests.server.callers import bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import Stream, serving
from tests.server.judged_runs import NOW, add_run
from tests.server.judged_runs import rows as rows_of


@pytest.fixture(params=["sqlite", "postgresql"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[httpx.Client]:
    with postgresql() if request.param == "postgresql" else nullcontext("") as url, serving(tmp_path, url) as client:
        client.headers["X-Ammeter-Request"] = "test"
        yield client


def run(client: httpx.Client, name: str, project: str = "demo", **tags: str) -> str:
    stream = Stream(client, name=name, project=project, tags=tags)
    for step in range(30):
        stream.tell(step, {"loss": 1.0, "val_loss": 2.0, "step_seconds": 0.01})
    stream.bye(29)
    stream.send()
    return stream.run


def pin(client: httpx.Client, run: str, of: str = "project") -> list[dict[str, Any]]:
    answer = client.post(f"/api/v1/runs/{run}/baseline", params={"of": of})
    assert 200 == answer.status_code, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def applies(client: httpx.Client, run: str) -> tuple[str, str] | None:
    answer = client.get(f"/api/v1/runs/{run}/baseline")
    return (answer.json()["run"], answer.json()["source"]) if answer.status_code == 200 else None


def test_the_tag_comes_before_the_pin_of_the_name_and_that_before_the_projects(client: httpx.Client) -> None:
    base, nightly, first = run(client, "base"), run(client, "nightly"), run(client, "nightly")
    tagged = run(client, "nightly", baseline="base")
    assert applies(client, nightly) is None
    assert [(None, base)] == [(item["name"], item["run"]) for item in pin(client, base)]
    assert (base, "project") == applies(client, nightly)
    pin(client, first, "name")
    assert [(first, "name"), (base, "run"), None] == [applies(client, each) for each in (nightly, tagged, base)]
    assert applies(client, run(client, "nightly", project="other")) is None


def test_a_comparison_without_a_baseline_uses_the_one_that_applies(client: httpx.Client) -> None:
    base, other = run(client, "base"), run(client, "other")
    refused = client.get(f"/api/v1/runs/{other}/compare")
    assert (404, True) == (refused.status_code, "has no baseline; pin one" in refused.json()["detail"])
    pin(client, base)
    assert base == client.get(f"/api/v1/runs/{other}/compare").json()["baseline"]["id"]


def test_another_pin_replaces_the_first_and_unpinning_can_be_repeated(client: httpx.Client) -> None:
    one, other = run(client, "one"), run(client, "two")
    pin(client, one)
    assert [other] == [item["run"] for item in pin(client, other)]
    for _ in range(2):
        assert [] == client.delete(f"/api/v1/runs/{other}/baseline").json()["items"]
    pin(client, other)
    assert [other] == [item["run"] for item in client.delete(f"/api/v1/runs/{one}/baseline").json()["items"]]
    assert ["pinned", "pinned", "unpinned", "pinned"] == [
        record["action"].partition(".")[2] for record in reversed(client.get("/api/v1/audit").json()["items"])
    ]


def test_a_run_without_a_name_has_no_pin_of_it(client: httpx.Client) -> None:
    answer = client.post(f"/api/v1/runs/{run(client, '')}/baseline", params={"of": "name"})
    assert (422, True) == (answer.status_code, "has no name; pin it with of=project" in answer.json()["detail"])


def test_a_deleted_run_is_no_baseline(client: httpx.Client) -> None:
    base, other = run(client, "base"), run(client, "other")
    pin(client, base)
    assert 204 == client.delete(f"/api/v1/runs/{base}").status_code
    assert applies(client, other) is None
    assert [] == client.get("/api/v1/baselines").json()["items"]


def test_retention_forgets_the_pins_of_the_runs_that_it_deletes(either_store: Store) -> None:
    old, other = add_run(either_store, state="ended", ended=2), add_run(either_store, started=NOW)
    with either_store.writing() as connection:
        query.pin(connection, "speech", "", old, "ann", 3)
    (row,) = [each for each in rows_of(either_store, runs) if each.id == other]
    with either_store.reading() as connection:
        found = find_baseline(connection, row)
    assert found is not None
    assert old == found.row.id
    partitions.forget_runs(either_store, day_of(NOW))
    with either_store.reading() as connection:
        assert [] == list(query.listed(connection, None))
        assert find_baseline(connection, row) is None


def test_a_token_of_a_project_sees_and_pins_its_own_runs(tmp_path: Path) -> None:
    with guarded(tmp_path) as place:
        own, other = (tokens.create(place.store, project, ("ingest", "read"), project) for project in ("demo", "other"))
        stream = Stream(place.client, project="demo", headers=bearer(own))
        stream.tell(0, {"loss": 1.0})
        stream.send()
        path = f"/api/v1/runs/{stream.run}/baseline"
        assert 404 == place.client.post(path, headers=bearer(other)).status_code
        assert 200 == place.client.post(path, headers=bearer(own)).status_code
        listed = [place.client.get("/api/v1/baselines", headers=bearer(each)).json()["items"] for each in (own, other)]
    assert [1, 0] == [len(items) for items in listed]
