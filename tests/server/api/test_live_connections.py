"""How many live connections there are, and what becomes of them when a collector stops or is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from ammeter_server.api import live
from ammeter_server.auth import tokens
from ammeter_server.db import connect, migrations
from ammeter_server.process import self_metrics
from tests import forked
from tests.alerting import free_port
from tests.server.api.live_reader import Reader
from tests.server.callers import bearer, guarded
from tests.server.databases import postgresql
from tests.server.feeding import Stream, break_down, serving, train, wait_until


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

        def all_received() -> bool:
            with client.stream("GET", path) as again:
                return again.status_code == 200

        wait_until(all_received)


def test_a_collector_that_stops_waits_for_nobody_who_is_told(tmp_path: Path) -> None:
    with ExitStack() as connections:
        with serving(tmp_path) as client:
            stream = Stream(client)
            train(stream, 0, 3)
            stream.send()
            other = connections.enter_context(httpx.Client(base_url=client.base_url, timeout=30))
            lines = connections.enter_context(other.stream("GET", f"/api/v1/runs/{stream.run}/live")).iter_lines()
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
            dead.wait(60)  # or the first one might have sent everything
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
            received = len(reader.events)
            reader.listen(other, stream.run, lambda: len(reader.events) >= 77, names="loss,scale")
        finally:
            over.set()
            dead.set()
            feeding.join()
        everything = [f"{stream.stream}.{number}" for number in range(77)]
        assert 15 <= received < 77
        assert {} == {name: times for name, times in Counter(reader.events).items() if times > 1}
        assert everything == reader.events
        assert {"0 loss": list(range(75)), "0 scale": list(range(75))} == reader.steps
