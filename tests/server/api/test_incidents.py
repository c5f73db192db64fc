from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.feeding import Stream, break_down, serving, train, wait_until

API = "/api/v1/incidents"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path, public_url="http://localhost:8480") as client:
        yield client


def broken(client: httpx.Client, **stream: Any) -> tuple[Stream, dict[str, Any]]:
    """A run whose gradients became NaN, and the incident that it opened."""
    run = Stream(client, **stream)
    train(run, 0, 40)
    break_down(run, 41, 50)
    run.send()
    items = wait_until(lambda: client.get(f"/api/v1/runs/{run.run}/incidents").json()["items"])
    return run, items[0]


def test_an_incident_says_what_where_why_and_what_to_do(client: httpx.Client) -> None:
    stream, incident = broken(client)
    assert (stream.run, "nightly", "demo") == (incident["run"], incident["run_name"], incident["project"])
    assert ("nonfinite-gradient", "page", "open") == (incident["verdict"], incident["severity"], incident["state"])
    assert (41, "blocks.1.mlp.fc.weight") == (incident["first_step"], incident["tensor"])
    assert "blocks.1.mlp.fc" == incident["module"]
    assert "blocks.1.mlp.fc" in incident["cause"]
    assert incident["fix"]
    assert incident["opened"].endswith("Z")
    assert "/runbooks/nonfinite-gradient" == incident["runbook"]
    assert ["scale-collapse"] == [finding["verdict"] for finding in incident["consequences"]]
    assert incident == client.get(f"{API}/{incident['id']}").json()
    run = client.get(f"/api/v1/runs/{stream.run}").json()
    assert (1, "page") == (run["open_incidents"], run["worst"])


def test_acknowledging_says_when_and_twice_is_fine(client: httpx.Client) -> None:
    _, incident = broken(client)
    path = f"{API}/{incident['id']}/acknowledge"
    once = client.post(path, headers={"X-Ammeter-Request": "test"}).json()
    twice = client.post(path, headers={"X-Ammeter-Request": "test"}).json()
    assert ("acknowledged", "acknowledged") == (once["state"], twice["state"])
    assert once["acknowledged"] is not None
    assert once["acknowledged"] == twice["acknowledged"]


def test_a_closed_incident_is_closed_by_hand_and_cannot_be_taken_on(client: httpx.Client) -> None:
    stream, incident = broken(client)
    closed = client.post(f"{API}/{incident['id']}/close", headers={"X-Ammeter-Request": "test"}).json()
    assert ("closed", "by hand") == (closed["state"], closed["closed_reason"])
    run = client.get(f"/api/v1/runs/{stream.run}").json()
    assert (0, 1) == (run["open_incidents"], run["closed_incidents"])
    refused = client.post(f"{API}/{incident['id']}/acknowledge", headers={"X-Ammeter-Request": "test"})
    assert 409 == refused.status_code
    assert "is closed (by hand); it cannot be acknowledged" in refused.json()["detail"]


def test_who_was_told_and_how_that_went_is_shown(tmp_path: Path) -> None:
    with serving(tmp_path, notify=("json://127.0.0.1:9/",)) as client:
        _, incident = broken(client)
        path = f"{API}/{incident['id']}/deliveries"
        (failed,) = wait_until(lambda: [delivery for delivery in client.get(path).json()["items"] if delivery["error"]])
        assert 404 == client.get(f"{API}/{incident['run']}.nothing.1/deliveries").status_code
    assert failed["channel"].startswith("json-")
    assert ("opened", "pending", None) == (failed["kind"], failed["state"], failed["sent"])
    assert failed["attempts"] >= 1


def test_an_incident_is_silenced_for_some_hours_and_no_longer_than_a_week(client: httpx.Client) -> None:
    _, incident = broken(client)
    path, header = f"{API}/{incident['id']}/silence", {"X-Ammeter-Request": "test"}
    silenced = client.post(path, params={"hours": 2}, headers=header).json()
    assert "open" == silenced["state"]
    assert silenced["silenced"] > incident["opened"]
    assert 422 == client.post(path, params={"hours": 200}, headers=header).status_code
    assert 403 == client.post(path).status_code
    client.post(f"{API}/{incident['id']}/close", headers=header)
    assert 409 == client.post(path, headers=header).status_code


def test_a_change_without_the_pages_header_is_refused(client: httpx.Client) -> None:
    _, incident = broken(client)
    refused = client.post(f"{API}/{incident['id']}/close")
    assert 403 == refused.status_code
    assert "X-Ammeter-Request" in refused.json()["detail"]
    assert "open" == client.get(f"{API}/{incident['id']}").json()["state"]


def test_incidents_of_all_runs_are_chosen_and_paged(client: httpx.Client) -> None:
    ids = [broken(client, project=project)[1]["id"] for project in ("speech", "vision", "speech")]
    assert ids[::-1] == [item["id"] for item in client.get(API).json()["items"]]
    first = client.get(API, params={"page_size": 2}).json()
    second = client.get(API, params={"page_size": 2, "page_token": first["next_page_token"]}).json()
    assert ids[::-1] == [item["id"] for item in first["items"] + second["items"]]
    assert second["next_page_token"] is None
    client.post(f"{API}/{ids[0]}/close", headers={"X-Ammeter-Request": "test"})
    for asked, expected in (
        ({"state": "open"}, [ids[2], ids[1]]),
        ({"state": "open,closed"}, ids[::-1]),
        ({"project": "vision"}, [ids[1]]),
        ({"severity": "ticket"}, []),
        ({"verdict": "nonfinite-gradient"}, ids[::-1]),
        ({"verdict": "run-lost,nonfinite-gradient"}, ids[::-1]),
        ({"verdict": "run-lost"}, []),
        ({"until": "2001-01-01"}, []),
        ({"since": "2001-01-01"}, ids[::-1]),
    ):
        assert expected == [item["id"] for item in client.get(API, params=asked).json()["items"]], asked
    last = client.get(f"{API}/{ids[2]}").json()
    for asked, expected in (
        ({"since": last["opened"]}, [ids[2]]),
        ({"until": last["opened"], "severity": "page", "rank": "0,7", "verdict": "nonfinite-gradient"}, [ids[2]]),
        ({"rank": "1"}, []),
        ({"severity": "ticket"}, []),
    ):
        items = client.get(f"/api/v1/runs/{last['run']}/incidents", params=asked).json()["items"]
        assert expected == [item["id"] for item in items], asked


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("GET", "/api/v1/incidents/nothing", 404, "there is no incident 'nothing'"),
        ("POST", "/api/v1/incidents/a.b.1/close", 404, "there is no incident 'a.b.1'"),
        ("GET", "/api/v1/runs/nothing/incidents", 404, "there is no run 'nothing'"),
        ("GET", "/api/v1/incidents?state=asleep", 422, "state is 'asleep'; use open, acknowledged, closed"),
        ("GET", "/api/v1/incidents?page_token=%ff", 422, "page_token is"),
    ],
)
def test_what_is_not_there_or_cannot_be_is_a_problem_with_a_remedy(
    client: httpx.Client, method: str, path: str, status: int, said: str
) -> None:
    answer = client.request(method, path, headers={"X-Ammeter-Request": "test"})
    assert (status, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert said in answer.json()["detail"]
