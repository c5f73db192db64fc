"""Two projects on one collector: nothing of the one is told to whoever has a token of the other."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from ammeter_server.api import live
from ammeter_server.auth import tokens
from tests.server.callers import Guarded, bearer, guarded
from tests.server.feeding import Stream, break_down, train, wait_until

NOBODYS = "00000000-0000-4000-8000-000000000000"


class Two:
    """A broken run of ours and one of theirs, and a token of every kind."""

    def __init__(self, place: Guarded) -> None:
        self.client = place.client
        made = {name: (scopes, name) for name, scopes in (("ours", ("ingest", "read")), ("theirs", ("admin",)))}
        self.tokens = {name: tokens.create(place.store, name, *how) for name, how in made.items()}
        self.tokens["all"] = tokens.create(place.store, "all", ("admin",))
        self.runs = {name: self._broken(name) for name in made}
        wait_until(lambda: 2 == len(self.get("/api/v1/incidents?state=open", "all").json()["items"]))

    def _broken(self, name: str) -> str:
        stream = Stream(self.client, name=f"run of {name}", project="said", headers=bearer(self.tokens[name]))
        train(stream, 0, 40)
        break_down(stream, 41, 60)
        stream.send()
        return stream.run

    def get(self, path: str, caller: str) -> httpx.Response:
        return self.client.get(path, headers=bearer(self.tokens[caller]))


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with pytest.MonkeyPatch.context() as patch, guarded(tmp_path_factory.mktemp("reach")) as place:
        patch.setattr(live, "MAX_ANSWER_SECONDS", 0.01)
        yield Two(place)


PATHS = (
    "/api/v1/runs/{run}",
    "/api/v1/runs/{run}/series?names=loss",
    "/api/v1/runs/{run}/tensors",
    "/api/v1/runs/{run}/tensors/matrix",
    "/api/v1/runs/{run}/spectrum",
    "/api/v1/runs/{run}/what-if",
    "/api/v1/runs/{run}/events",
    "/api/v1/runs/{run}/incidents",
    "/api/v1/runs/{run}/live",
    "/api/v1/runs/{run}/directives",
    "/api/v1/runs/{run}/compare/{run}",
    "/api/v1/incidents/{run}.nonfinite-gradient.1",
    "/api/v1/incidents/{run}.nonfinite-gradient.1/context",
    "/api/v1/incidents/{run}.nonfinite-gradient.1/reach",
    "/api/v1/incidents/{run}.nonfinite-gradient.1/deliveries",
)


OF_BASELINE = ("/api/v1/runs/{run}/baseline", "/api/v1/runs/{run}/compare")
"""Paths that need a baseline, which these runs do not have."""


def test_every_route_with_a_run_in_its_path_is_tried(two: Two) -> None:
    described = two.get("/openapi.json", "all").json()["paths"]
    reading = {path for path, how in described.items() if "get" in how and ("{run}" in path or "{incident}" in path)}
    tried = {path.partition("?")[0] for path in (*PATHS, *OF_BASELINE)}
    tried = {path.replace("compare/{run}", "compare/{baseline}") for path in tried}
    assert reading == {path.replace("{run}.nonfinite-gradient.1", "{incident}") for path in tried}


@pytest.mark.parametrize("path", PATHS)
def test_another_projects_run_is_told_of_as_one_that_is_not_there(two: Two, path: str) -> None:
    theirs, nobodys = (two.get(path.format(run=run), "ours") for run in (two.runs["theirs"], NOBODYS))
    assert (404, nobodys.text.replace(NOBODYS, two.runs["theirs"])) == (theirs.status_code, theirs.text)
    assert 200 == two.get(path.format(run=two.runs["ours"]), "ours").status_code
    assert 200 == two.get(path.format(run=two.runs["theirs"]), "all").status_code


@pytest.mark.parametrize("path", OF_BASELINE)
def test_another_projects_run_has_no_baseline_that_is_told(two: Two, path: str) -> None:
    theirs, nobodys = (two.get(path.format(run=run), "ours") for run in (two.runs["theirs"], NOBODYS))
    assert (404, nobodys.text.replace(NOBODYS, two.runs["theirs"])) == (theirs.status_code, theirs.text)
    assert nobodys.text.replace(NOBODYS, two.runs["theirs"]) != two.get(path.format(run=two.runs["theirs"]), "all").text


def test_another_projects_run_is_no_baseline(two: Two) -> None:
    ours, theirs = two.runs["ours"], two.runs["theirs"]
    assert 404 == two.get(f"/api/v1/runs/{ours}/compare/{theirs}", "ours").status_code
    assert 200 == two.get(f"/api/v1/runs/{ours}/compare/{theirs}", "all").status_code


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/incidents"])
def test_lists_hold_the_projects_own(two: Two, path: str) -> None:
    assert {"ours"} == {item["project"] for item in two.get(path, "ours").json()["items"]}
    assert {"ours", "theirs"} == {item["project"] for item in two.get(path, "all").json()["items"]}
    assert "theirs" not in two.get(f"{path}?project=ours", "ours").text
    assert 404 == two.get(f"{path}?project=theirs", "ours").status_code


@pytest.mark.parametrize("path", ["/metrics", "/metrics/self", "/api/v1/audit"])
def test_what_is_about_all_projects_is_not_for_a_token_of_one(two: Two, path: str) -> None:
    answer = two.get(path, "theirs")
    assert (403, False) == (answer.status_code, two.runs["ours"] in answer.text)


@pytest.mark.parametrize("what", ["acknowledge", "close"])
def test_another_projects_incident_cannot_be_handled(two: Two, what: str) -> None:
    incident = f"{two.runs['theirs']}.nonfinite-gradient.1"
    answer = two.client.post(f"/api/v1/incidents/{incident}/{what}", headers=bearer(two.tokens["ours"]))
    assert 404 == answer.status_code
    assert "open" == two.get(f"/api/v1/incidents/{incident}", "all").json()["state"]


def test_a_session_reaches_what_its_token_does(two: Two) -> None:
    with httpx.Client(base_url=two.client.base_url) as browser:
        assert 204 == browser.post("/api/v1/session", json={"token": two.tokens["ours"]}).status_code
        assert 404 == browser.get(f"/api/v1/runs/{two.runs['theirs']}").status_code
        assert [two.runs["ours"]] == [run["id"] for run in browser.get("/api/v1/runs").json()["items"]]


def test_another_projects_run_is_neither_appended_to_nor_told_of(two: Two) -> None:
    before = two.get(f"/api/v1/runs/{two.runs['theirs']}", "all").json()
    other = Stream(two.client, run=two.runs["theirs"], rank=1, headers=bearer(two.tokens["ours"]))
    train(other, 0, 3)
    other.send()  # a run of ours that is called so, too: see test_senders.py
    assert before == two.get(f"/api/v1/runs/{two.runs['theirs']}", "all").json()
