"""What is told while a run goes on, by one collector and by another that goes on where it ended."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest

from ammeter_server.api import change_feed, live
from ammeter_server.db import connect
from ammeter_server.db.tables import runs
from tests.server.api.live_reader import Reader
from tests.server.feeding import Stream, break_down, serving, train, wait_until


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def test_everything_is_told_at_first_and_then_what_has_changed(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 40)
    stream.send()
    reader = Reader()
    reader.listen(client, stream.run, lambda: reader.messages, names="loss,val_loss")
    assert (40, []) == (reader.runs[-1]["last_step"], reader.incidents[-1])
    assert [f"{stream.stream}.{number}" for number in range(2)] == reader.events
    assert {"0 loss": list(range(41)), "0 val_loss": [0, 25]} == reader.steps

    def go_on() -> None:
        break_down(stream, 41, 45)
        stream.send()

    threading.Timer(0.2, go_on).start()
    reader.listen(client, stream.run, lambda: reader.incidents[-1] and len(reader.events) == 17, names="loss,val_loss")
    assert [f"{stream.stream}.{number}" for number in range(17)] == reader.events
    assert {"0 loss": list(range(46)), "0 val_loss": [0, 25]} == reader.steps
    assert "nonfinite-gradient" == reader.incidents[-1][0]["verdict"]
    assert 45 == reader.runs[-1]["last_step"]
    shown = client.get(f"/api/v1/runs/{stream.run}/incidents").json()["items"]
    assert shown == reader.incidents[-1]


def test_what_a_person_does_is_told_to_the_others(client: httpx.Client) -> None:
    stream = Stream(client)
    train(stream, 0, 40)
    break_down(stream, 41, 45)
    stream.send()
    reader = Reader()

    def acknowledge() -> None:
        path = f"/api/v1/incidents/{reader.incidents[-1][0]['id']}/acknowledge"
        httpx.post(f"{client.base_url}{path}", headers={"X-Ammeter-Request": "test"}, timeout=30)

    reader.listen(client, stream.run, lambda: reader.incidents and reader.incidents[-1])
    threading.Timer(0.2, acknowledge).start()
    reader.listen(client, stream.run, lambda: reader.incidents[-1][0]["state"] == "acknowledged")
    assert 15 + 2 == len(set(reader.events)) == len(reader.events)


def test_the_lowest_rank_is_told_of_unless_others_are_asked_for(client: httpx.Client) -> None:
    first = Stream(client, rank=2, world_size=4)
    for rank in (2, 1, 3):
        stream_of_rank = Stream(client, run=first.run, rank=rank, world_size=4)
        train(stream_of_rank, 0, 3)
        stream_of_rank.send()
    for asked, ranks in (({}, {"1 loss"}), ({"rank": "2,3"}, {"2 loss", "3 loss"})):
        reader = Reader()
        reader.listen(client, first.run, partial(getattr, reader, "messages"), names="loss", **asked)
        assert ranks == set(reader.steps)


def test_many_events_come_in_messages_of_some_each_once(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_feed, "MAX_EVENTS", 4)
    monkeypatch.setattr(change_feed, "FIRST_EVENTS", 15)
    stream = Stream(client)
    train(stream, 0, 40)
    break_down(stream, 41, 47)
    stream.send()
    reader = Reader()
    reader.listen(client, stream.run, lambda: len(reader.events) >= 15)
    assert [f"{stream.stream}.{number}" for number in range(8, 23)] == reader.events
    assert 4 == reader.messages


def test_an_answer_ends_after_a_while_and_who_asks_again_hears_only_what_is_new(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_ANSWER_SECONDS", 0.05)
    stream = Stream(client)
    train(stream, 0, 40)
    stream.bye(40)
    stream.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}").json()["state"] == "ended")
    reader = Reader()
    reader.listen(client, stream.run, lambda: False, names="loss")
    reader.listen(client, stream.run, lambda: False, names="loss")
    assert 1 == reader.messages


def test_a_run_that_is_deleted_ends_the_answer(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_IDLE_SECONDS", 0.05)
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send()
    store, reader = connect(f"sqlite:///{tmp_path / 'collector.db'}"), Reader()

    def delete() -> bool:
        if reader.messages == 1:
            with store.writing() as connection:
                connection.execute(runs.delete().where(runs.c.id == stream.run))
            reader.messages += 1
        return False

    reader.listen(client, stream.run, delete)
    assert 404 == client.get(f"/api/v1/runs/{stream.run}/live").status_code
    store.close()


@pytest.mark.parametrize(
    ("path", "headers", "status", "said"),
    [
        ("/api/v1/runs/nobody/live", {}, 404, "there is no run 'nobody'"),
        ("/api/v1/runs/{run}/live", {"Last-Event-ID": "yesterday"}, 422, "Last-Event-ID is 'yesterday'"),
        ("/api/v1/runs/{run}/live", {"Last-Event-ID": "\u00e4"}, 422, "which this server did not send"),
        ("/api/v1/runs/{run}/live?rank=x", {}, 422, "query.rank is 'x'"),
    ],
)
def test_what_cannot_be_told_is_a_problem(
    client: httpx.Client, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send()
    sent = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = client.get(path.format(run=stream.run), headers=sent)
    assert (status, "application/problem+json") == (answer.status_code, answer.headers["content-type"])
    assert said in answer.json()["detail"]


def test_one_collector_tells_so_many_and_the_next_one_when_one_has_gone(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_FOLLOWERS", 1)
    stream = Stream(client)
    train(stream, 0, 3)
    stream.send()
    path = f"/api/v1/runs/{stream.run}/live"
    with client.stream("GET", path) as first:
        lines = first.iter_lines()
        assert "retry: 1000" == next(lines)
        refused = client.get(path)
        assert (503, "10") == (refused.status_code, refused.headers["Retry-After"])
        assert "live" == refused.json()["limit"]

    def told() -> bool:
        with client.stream("GET", path) as again:
            return again.status_code == 200

    wait_until(told)
