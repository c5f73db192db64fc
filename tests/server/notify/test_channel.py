from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import select, update

from ammeter_server.config.settings import Settings, SettingsError
from ammeter_server.db import Store, connect, migrations
from ammeter_server.db.queries import outbox
from ammeter_server.db.tables import outbox as table
from ammeter_server.db.tables import runs
from ammeter_server.notify.channel import Channel, DeliveryError, Message, open_channels
from ammeter_server.notify.delivery import LEASE_NS, LIFETIME_NS, PAUSE_SECONDS, Outbox, outcome
from tests.server.feeding import Stream, break_down, serving, train, wait_until

SECOND = 10**9
TOLD = {"kind": "opened", "severity": "page", "title": "It fell", "body": "Cause: why"}


@dataclass
class Receiver:
    """A real web server that notes what it is sent, and refuses as often as it is told to."""

    url: str = ""
    refusals: int = 0
    said: list[dict[str, Any]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def take(self, body: bytes) -> int:
        self.times.append(time.monotonic())
        if self.refusals > 0:
            self.refusals -= 1
            return 500
        self.said.append(json.loads(body))
        return 200


@contextmanager
def receiving(refusals: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(refusals=refusals)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code = receiver.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    receiver.url = f"json://127.0.0.1:{server.server_port}/"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = connect(f"sqlite:///{tmp_path / 'c.db'}")
    migrations.migrate(store)
    yield store
    store.close()


def put(store: Store, channel: str, kind: str = "opened", created: int | None = None, incident: str = "i") -> None:
    with store.writing() as connection:
        run = connection.execute(select(runs.c.id)).scalar()
        if run is None:
            run = str(uuid.uuid4())
            connection.execute(runs.insert().values(id=run))
        now = created or time.time_ns()
        outbox.add(connection, run, incident, channel, TOLD | {"kind": kind}, now, now)


def rows(store: Store) -> list[Any]:
    with store.reading() as connection:
        return list(connection.execute(select(table).order_by(table.c.created)))


@contextmanager
def delivering(store: Store, *channels: Channel) -> Iterator[Outbox]:
    out = Outbox(store, {channel.name: channel for channel in channels})
    try:
        yield out
    finally:
        out.close()


def deliver(store: Store, out: Outbox, state: Callable[[Any], bool]) -> Any:
    """Delivers what is due now until the first row is as wanted."""
    out.deliver_due(time.time_ns() + 1)
    return wait_until(lambda: next((row for row in rows(store)[:1] if state(row)), None))


def test_a_refused_message_is_kept_with_its_error_and_delivered_later(store: Store) -> None:
    with receiving(refusals=1) as receiver:
        (channel,) = open_channels(Settings(notify=(receiver.url,))).values()
        put(store, channel.name)
        with delivering(store, channel) as out:
            begun = time.time_ns()
            row = deliver(store, out, lambda row: row.error is not None)
            assert ("pending", 1, None) == (row.state, row.attempts, row.sent)
            assert "500" in row.error
            assert begun <= row.due - PAUSE_SECONDS[0] * SECOND <= time.time_ns()
            out.deliver_due(row.due - 1)
            assert 1 == rows(store)[0].attempts
            out.deliver_due(row.due + 1)
            row = wait_until(lambda: next((row for row in rows(store) if row.state == "sent"), None))
    assert (2, None) == (row.attempts, row.error)
    assert [("It fell", "failure")] == [(said["title"], said["type"]) for said in receiver.said]
    assert "Cause: why" in receiver.said[0]["message"]


def test_nobody_hears_resolved_before_opened(store: Store) -> None:
    heard: list[str] = []
    refuse = [True]

    def send(told: Sequence[Message]) -> None:
        if refuse[0]:
            raise DeliveryError("busy")
        heard.extend(message_sent["kind"] for message_sent in told)

    now = time.time_ns()
    put(store, "c", "opened", now)
    put(store, "c", "resolved", now + 1)
    with delivering(store, Channel("c", send)) as out:
        deliver(store, out, lambda row: row.error is not None)
        assert "busy" == rows(store)[0].error
        refuse[0] = False
        wait_until(lambda: (out.deliver_due(time.time_ns() + 2 * SECOND) and False) or len(heard) == 2)
    assert ["opened", "resolved"] == heard


def test_a_row_that_two_collectors_see_is_sent_once(store: Store) -> None:
    heard: list[str] = []
    channel = Channel("c", lambda told: heard.extend(sent["kind"] for sent in told))
    for number in range(10):
        put(store, "c", incident=str(number))
    with delivering(store, channel) as one, delivering(store, channel) as other:
        threads = [threading.Thread(target=out.deliver_due, args=(time.time_ns() + 1,)) for out in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert 10 == len(heard)
    assert {"sent"} == {row.state for row in rows(store)}


def test_where_alerts_are_held_they_wait_for_more_to_be_found_and_nobody_else_does(store: Store) -> None:
    heard: list[str] = []
    told = Channel("told", lambda _: heard.append("told"))
    holds = Channel("holds", lambda _: heard.append("holds"), stateful=True)
    put(store, "told")
    put(store, "holds")
    with delivering(store, told, holds) as out:
        assert 1 == out.deliver_due(time.time_ns() + 1, gathering=True)
        wait_until(lambda: heard == ["told"])
        assert 1 == out.deliver_due(time.time_ns() + 1)
        wait_until(lambda: heard == ["told", "holds"])


def test_a_delivery_whose_process_died_is_tried_by_another_when_its_lease_ends(store: Store) -> None:
    put(store, "c")
    now = time.time_ns()
    with store.writing() as connection:
        connection.execute(update(table).values(claimed_until=now + LEASE_NS, attempts=1))
    heard: list[Any] = []
    with delivering(store, Channel("c", heard.extend)) as out:
        assert 0 == out.deliver_due(now + 1)
        assert 1 == out.deliver_due(now + LEASE_NS + 1)
    assert 1 == len(heard)


def test_a_channel_that_is_configured_no_more_is_named_in_the_error(store: Store) -> None:
    put(store, "slack-12345678")
    with delivering(store) as out:
        row = deliver(store, out, lambda row: row.error is not None)
    assert "channel slack-12345678 is not configured here; configure it as when the incident opened" in row.error


def test_pauses_grow_and_after_a_day_a_message_is_given_up() -> None:
    tried = [SimpleNamespace(attempts=before, created=0, kind="opened", sent=None) for before in range(9)]
    assert [1, 2, 5, 10, 30, 60, 300, 300, 300] == [outcome(row, "no", SECOND)["due"] // SECOND - 1 for row in tried]
    assert {"state": "failed", "error": "no"} == outcome(tried[8], "no", LIFETIME_NS)
    assert {"state": "sent", "sent": 5, "error": None} == outcome(tried[0], None, 5)


def test_a_channels_name_holds_no_secret_and_is_the_same_everywhere() -> None:
    url = "json://user:hunter2@127.0.0.1:9/path"
    (one,), (other,) = open_channels(Settings(notify=(url,))), open_channels(Settings(notify=(url,)))
    assert one == other
    assert one.startswith("json-")
    assert "hunter2" not in one


def test_an_address_that_apprise_does_not_know_stops_the_start() -> None:
    with pytest.raises(SettingsError, match="AMMETER_SERVER_NOTIFY or its file contains a carrier-pigeon:// URL"):
        open_channels(Settings(notify=("carrier-pigeon://coop",)))


def test_what_a_run_said_is_no_markup_where_a_service_takes_html() -> None:
    with receiving() as receiver:
        (channel,) = open_channels(Settings(notify=(receiver.url + "?format=html",))).values()
        channel.send([TOLD | {"body": "Run: <img src=x onerror=alert(1)>"}])
    assert "<img" not in receiver.said[0]["message"]
    assert "&lt;img" in receiver.said[0]["message"]


def more_than(said: list[Any], count: int) -> bool:
    return len(said) > count


def test_an_incident_reaches_a_receiver_well_under_half_a_second_after_its_commit(tmp_path: Path) -> None:
    with receiving() as receiver, serving(tmp_path, notify=(receiver.url,)) as client:
        took: list[float] = []
        for _ in range(8):
            stream = Stream(client)
            train(stream, 0, 39)
            stream.send()
            break_down(stream, 40, 50)
            stream.send()
            committed = time.monotonic()
            wait_until(partial(more_than, receiver.said, len(took)))
            took.append(receiver.times[len(took)] - committed)
    assert 0.5 > sorted(took)[len(took) // 2]
    assert all("[page]" in said["title"] for said in receiver.said[:8])
