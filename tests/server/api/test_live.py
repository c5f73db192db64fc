"""What is told while a run goes on, by one collector and by another that goes on where it ended."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter_server.api import change_feed, live
from ammeter_server.auth import tokens
from ammeter_server.db import connect, migrations
from ammeter_server.db.tables import runs
from ammeter_server.process import self_metrics
from tests import forked
from tests.alerting import free_port
from tests.server.callers import bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import Stream, break_down, curves, serving, train, wait_until


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


@dataclass
class Reader:
    """Who is told: what came so far, and the id to go on with."""

    id: str | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[list[dict[str, Any]]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    steps: dict[str, list[int]] = field(default_factory=dict)
    messages: int = 0

    def listen(self, client: httpx.Client, run: str, enough: Callable[[], Any], **asked: Any) -> None:
        """Reads one answer until it has read enough or the answer ends."""
        headers = {"Last-Event-ID": self.id} if self.id else {}
        with client.stream("GET", f"/api/v1/runs/{run}/live", params=asked, headers=headers) as answer:
            assert (200, "text/event-stream; charset=utf-8") == (answer.status_code, answer.headers["content-type"])
            given = ""
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    given = value
                elif name == "data":
                    self.take(json.loads(value))
                    self.id = given
                if enough():
                    return

    def take(self, told: dict[str, Any]) -> None:
        self.messages += 1
        self.runs += [told["run"]] if told["run"] else []
        self.incidents += [told["incidents"]] if told["incidents"] is not None else []
        self.events += [event["id"] for event in told["events"]]
        for curve in curves(told["series"]) if told["series"] else ():
            self.steps.setdefault(f"{curve['rank']} {curve['name']}", []).extend(curve["steps"])


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


def test_a_reader_has_so_many_live_connections_and_another_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_FOLLOWERS_OF_ONE", 2)
    with guarded(tmp_path, token="f" * 40) as place, ExitStack() as streams:
        stream = Stream(place.client, headers=bearer("f" * 40))
        train(stream, 0, 3)
        stream.send()
        path = f"/api/v1/runs/{stream.run}/live"
        one, other = (tokens.create(place.store, name, ("read",)) for name in ("one", "other"))
        client = streams.enter_context(httpx.Client(base_url=place.client.base_url, timeout=30))
        assert 204 == client.post("/api/v1/session", json={"token": one}).status_code
        before = self_metrics.limited.labels("live")._value.get()
        ways = [bearer(one), {}]  # the token, and the session that it opened
        first, _ = (streams.enter_context(client.stream("GET", path, headers=headers)) for headers in ways)
        for headers in ({"Authorization": f"bEARER   {one}"}, {}):
            refused = client.get(path, headers=headers)
            assert (429, "application/problem+json") == (refused.status_code, refused.headers["content-type"])
            assert ("live", "10") == (refused.json()["limit"], refused.headers["Retry-After"])
            assert "close one" in refused.json()["detail"]
        with place.client.stream("GET", path, headers=bearer(other)) as answer:
            assert 200 == answer.status_code
        assert before + 2 == self_metrics.limited.labels("live")._value.get()
        assert 'limited_total{limit="live"}' in place.client.get("/metrics/self", headers=bearer("f" * 40)).text
        first.close()

        def told() -> bool:
            with client.stream("GET", path) as again:
                return again.status_code == 200

        wait_until(told)


def test_a_collector_that_stops_waits_for_nobody_who_is_told(tmp_path: Path) -> None:
    with ExitStack() as told:
        with serving(tmp_path) as client:
            stream = Stream(client)
            train(stream, 0, 3)
            stream.send()
            other = told.enter_context(httpx.Client(base_url=client.base_url, timeout=30))
            lines = told.enter_context(other.stream("GET", f"/api/v1/runs/{stream.run}/live")).iter_lines()
            assert "retry: 1000" == next(lines)
            began = time.monotonic()
        with pytest.raises(httpx.RemoteProtocolError):
            list(lines)
        assert time.monotonic() - began < live.MAX_ANSWER_SECONDS / 2


@contextmanager
def collector(url: str) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """A real process that serves the database, and a client for it."""
    port = free_port()
    command = [sys.executable, "-m", "ammeter_server", "serve", "--port", str(port), "--database-url", url]
    process = forked.Popen(command, imports=forked.COLLECTOR, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_until(lambda: process.poll() is None and _is_ready(client), 60)
            yield process, client
    finally:
        process.kill()
        process.wait()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_who_was_told_by_a_collector_that_is_killed_goes_on_at_another_and_misses_and_doubles_nothing() -> None:
    with ExitStack() as stack:
        url = stack.enter_context(postgresql())
        store = connect(url)
        migrations.migrate(store)
        store.close()
        process, one = stack.enter_context(collector(url))
        _, other = stack.enter_context(collector(url))
        stream = Stream(other)
        train(stream, 0, 9)
        stream.send()
        reader, over, dead = Reader(), threading.Event(), threading.Event()

        def go_on() -> None:
            for step in range(10, 70):
                train(stream, step, step)
                stream.say("scaler.growth", step, **{"from": 1.0, "to": 2.0})
                stream.send()
                if over.wait(0.03):
                    return
            dead.wait(60)  # or the first one might have told everything
            break_down(stream, 70, 74)
            stream.send()

        feeding = threading.Thread(target=go_on)
        feeding.start()
        try:

            def kill_in_the_middle() -> bool:
                if len(reader.events) >= 15 and not dead.is_set():
                    process.kill()  # what it had sent until then still comes
                    dead.set()
                return False

            with pytest.raises(httpx.TransportError):
                reader.listen(one, stream.run, kill_in_the_middle, names="loss,scale")
            heard = len(reader.events)
            reader.listen(other, stream.run, lambda: len(reader.events) >= 77, names="loss,scale")
        finally:
            over.set()
            dead.set()
            feeding.join()
        everything = [f"{stream.stream}.{number}" for number in range(77)]
        assert 15 <= heard < 77
        assert {} == {name: times for name, times in Counter(reader.events).items() if times > 1}
        assert everything == reader.events
        assert {"0 loss": list(range(75)), "0 scale": list(range(75))} == reader.steps
