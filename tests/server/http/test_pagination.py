"""Lists in pages while rows are inserted: each row that was there when the first page was asked for comes once.

On SQLite and on PostgreSQL, whose orders of text and whose comparisons of rows are their own.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.server.callers import Guarded, guarded
from tests.server.databases import postgresql
from tests.server.feeding import STEP, Stream, break_down, train, wait_until

BEGIN = time.time_ns() - 100 * 10**9


@dataclass
class Place:
    """A collector, and a run of four ranks that every test may add to."""

    client: httpx.Client
    run: str = field(default_factory=lambda: str(uuid.uuid4()))

    def stream(self, rank: int, begin: int = BEGIN) -> Stream:
        return Stream(self.client, run=self.run, rank=rank, world_size=8, begin=begin)

    def come(self, rank: int, begin: int = BEGIN) -> None:
        """A life of a rank with rows, events and a spectrum."""
        stream = self.stream(rank, begin)
        train(stream, 0, 3)
        stream.say("gradient.spectrum", 3, lowest=0, counts=[1, 1, 1], scale=1.0)
        stream.send()

    def another_run(self, begin: int) -> None:
        stream = Stream(self.client, begin=begin, project="paged")
        train(stream, 0, 40)
        break_down(stream, 41, 45)
        stream.send()
        wait_until(lambda: self.client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"])


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with ExitStack() as stack:
        url = stack.enter_context(postgresql()) if request.param == "postgresql" else ""
        guard: Guarded = stack.enter_context(guarded(tmp_path_factory.mktemp("pages"), url))
        place = Place(guard.client)
        for rank in (1, 3, 5):
            place.come(rank)
        for age in range(3):
            place.another_run(
                BEGIN - age * STEP
            )  # two of them in one list of one moment would be told apart by their ids
        yield place


LISTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any], Callable[[Place, int], None]]] = {
    "events": (
        "/api/v1/runs/{run}/events?",
        lambda item: item["id"],
        lambda place, turn: place.come(2, BEGIN + STEP * turn),
    ),
    "series": (
        "/api/v1/runs/{run}/series?names=loss,scale&",
        lambda item: (item["rank"], item["name"], item["stream"]),
        lambda place, turn: place.come(0, BEGIN - turn),
    ),
    "spectrum": (
        "/api/v1/runs/{run}/spectrum?",
        lambda item: (item["rank"], item["stream"]),
        lambda place, turn: place.come(0, BEGIN - turn),
    ),
    "tensors": (
        "/api/v1/runs/{run}/tensors?rank=5&stat=grad.norm,grad.zeros&",
        lambda item: (item["name"], item["stat"]),
        lambda place, turn: place.come(6),
    ),
    "matrix": (
        "/api/v1/runs/{run}/tensors/matrix?rank=5&",
        lambda item: (item["name"], item["values"]),
        lambda place, turn: place.come(6),
    ),
    "runs": (
        "/api/v1/runs?project=paged&",
        lambda item: item["id"],
        lambda place, turn: place.another_run(BEGIN + STEP * (1 + turn)),
    ),
    "incidents": (
        "/api/v1/incidents?project=paged&",
        lambda item: item["id"],
        lambda place, turn: place.another_run(BEGIN + STEP * (100 + turn)),
    ),
    "audit": ("/api/v1/audit?", lambda item: item["id"], lambda place, turn: handled(place)),
}


def handled(place: Place) -> None:
    """Somebody closes an incident, which is noted."""
    for incident in place.client.get("/api/v1/incidents", params={"state": "open,acknowledged", "page_size": 1}).json()[
        "items"
    ]:
        place.client.post(f"/api/v1/incidents/{incident['id']}/close", headers={"X-Ammeter-Request": "test"})


@pytest.mark.parametrize("name", LISTS)
def test_what_was_there_comes_once_and_in_order_while_more_is_inserted(place: Place, name: str) -> None:
    path, key, insert = LISTS[name]
    url = path.format(run=place.run)
    if name == "audit":
        for _ in range(3):
            place.another_run(time.time_ns())
            handled(place)
    there = [key(item) for item in place.client.get(url).json()["items"]]
    assert len(there) >= 3
    seen: list[Any] = []
    asked, turn = f"{url}page_size=2", 0
    while True:
        page = place.client.get(asked).json()
        assert len(page["items"]) <= 2
        seen += [key(item) for item in page["items"]]
        if page["next_page_token"] is None:
            break
        asked = f"{url}page_size=2&page_token={page['next_page_token']}"
        turn += 1
        if turn <= 2:
            insert(place, turn)
    assert there == [item for item in seen if item in there]
    assert len(seen) == len({repr(item) for item in seen})


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("events?name=scaler.*,gradient.spectrum&rank=1,3", {"scaler.seen", "gradient.spectrum"}),
        ("events?name=step.*", set()),
        ("events?since=2001-01-01&until=2001-01-02T00:00:00Z", set()),
        ("series?names=loss&rank=3,1&since=2001-01-01", {"loss"}),
        ("series?names=loss&until=2001-01-01", set()),
        ("series?names=loss&by=time&points=16", {"loss"}),
    ],
)
def test_what_is_chosen_is_the_same_on_both(place: Place, path: str, found: set[str]) -> None:
    answer = place.client.get(f"/api/v1/runs/{place.run}/{path}")
    assert 200 == answer.status_code, answer.text
    assert found == {item["name"] for item in answer.json()["items"]}
    if "rank=" in path:
        assert {1, 3} >= {item["rank"] for item in answer.json()["items"]}


def test_incidents_are_chosen_by_what_they_are_and_when_they_opened(place: Place) -> None:
    place.another_run(BEGIN)
    newest = place.client.get("/api/v1/incidents?page_size=1").json()["items"][0]
    path = f"/api/v1/runs/{newest['run']}/incidents"
    for asked, count in (
        ({"since": newest["opened"], "until": newest["opened"]}, 1),
        ({"verdict": "run-lost,nonfinite-gradient", "severity": "page", "rank": "0"}, 1),
        ({"rank": "1,2"}, 0),
        ({"until": "2001-01-01"}, 0),
    ):
        assert count == len(place.client.get(path, params=asked).json()["items"]), asked
