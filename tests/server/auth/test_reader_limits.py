from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ammeter_server.auth import reader_limits, tokens
from ammeter_server.auth.callers import COOKIE
from ammeter_server.auth.reader_limits import MAX_WAITING, THREADS, THREADS_PER_READER, ReaderLimits
from ammeter_server.db.queries import audit
from ammeter_server.http.limits import rate
from tests.server.callers import bearer, guarded
from tests.server.feeding import Stream, train, wait_until


class Slow:
    """An application that answers when it is told to, and the requests that it has heard of."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        await self.go_on.wait()
        await Response("told")(scope, receive, send)


def asks(of: ASGIApp, path: str, address: str, method: str = "GET") -> Awaitable[int]:
    """The status that a reader gets who has no token."""
    scope = {"type": "http", "method": method, "path": path, "headers": [], "client": (address, 1)}
    said: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            said.append(message["status"])

    async def ask() -> int:
        await of(scope, receive, send)
        return said[0]

    return asyncio.ensure_future(ask())


async def settled(true: Callable[[], bool]) -> None:
    """Lets everything run that can, until it is so."""
    for _ in range(1000):
        await asyncio.sleep(0)
        if true():
            return


def test_of_one_reader_so_many_questions_are_answered_at_once_and_another_is_answered_meanwhile() -> None:
    async def story() -> None:
        slow = Slow()
        of = ReaderLimits(slow)
        first = [asks(of, f"/{number}", "one") for number in range(10)]
        await settled(lambda: len(slow.asked) > THREADS_PER_READER)
        assert ["/0", "/1", "/2"] == slow.asked[:THREADS_PER_READER] == slow.asked
        second = asks(of, "/other", "two")
        await settled(lambda: "/other" in slow.asked)
        assert "/other" in slow.asked
        slow.go_on.set()
        assert [200] * 11 == await asyncio.gather(*first, second)
        assert not of._readers

    asyncio.run(story())


def test_a_reader_who_does_not_wait_for_answers_is_refused() -> None:
    async def story() -> None:
        slow = Slow()
        of = ReaderLimits(slow)
        many = [asks(of, "/", "one") for _ in range(MAX_WAITING)]
        await settled(lambda: len(slow.asked) == THREADS_PER_READER)
        assert 429 == await asks(of, "/", "one")
        slow.go_on.set()
        assert [200] * MAX_WAITING == await asyncio.gather(*many)
        assert 200 == await asks(of, "/", "one")

    asyncio.run(story())


def test_an_answer_that_goes_on_for_ever_keeps_no_other_from_its_turn() -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            await asyncio.Event().wait()

    async def story() -> None:
        of = ReaderLimits(endless)
        open_ones = [asyncio.ensure_future(asks(of, "/endless", "one")) for _ in range(MAX_WAITING + 1)]
        assert 200 == await asyncio.wait_for(asks(of, "/", "one"), 10)
        assert not of._readers
        for request in open_ones:
            request.cancel()
        await asyncio.gather(*open_ones, return_exceptions=True)

    asyncio.run(story())


def test_a_question_that_is_taken_back_gives_its_turn_to_the_next() -> None:
    async def story() -> None:
        slow = Slow()
        of = ReaderLimits(slow)
        first = [asyncio.ensure_future(asks(of, f"/{number}", "one")) for number in range(THREADS_PER_READER + 2)]
        await settled(lambda: len(slow.asked) == THREADS_PER_READER)
        first[0].cancel()
        first[THREADS_PER_READER].cancel()
        await settled(lambda: len(slow.asked) == THREADS_PER_READER + 1)
        assert f"/{THREADS_PER_READER + 1}" == slow.asked[-1]
        slow.go_on.set()
        await asyncio.gather(*first, return_exceptions=True)
        assert not of._readers

    asyncio.run(story())


@pytest.mark.parametrize(("method", "path"), [("GET", "/livez"), ("GET", "/static/api.js"), ("POST", "/x/frames")])
def test_what_is_free_is_answered_however_much_is_asked(method: str, path: str) -> None:
    async def story() -> None:
        slow = Slow()
        of = ReaderLimits(slow, rate.RateLimiter(0.0, 1.0))
        slow.go_on.set()
        assert [200] * 5 == [await asks(of, path, "one", method) for _ in range(5)]
        assert [200, 429] == [await asks(of, "/", "one") for _ in range(2)]

    asyncio.run(story())


def test_a_dashboard_that_asks_in_a_loop_is_told_to_wait_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_limits, "BURST_REQUESTS", 3.0)
    monkeypatch.setattr(reader_limits, "REQUESTS_PER_SECOND", 0.0)
    with guarded(tmp_path, token="f" * 40) as place:
        loop, other = (tokens.create(place.store, name, ("read",)) for name in ("loop", "other"))
        answers = [place.client.get("/api/v1/runs", headers=bearer(loop)) for _ in range(5)]
        assert [200, 200, 200, 429, 429] == [answer.status_code for answer in answers]
        said = answers[-1]
        assert ("reads", "1") == (said.json()["limit"], said.headers["retry-after"])
        assert ("application/problem+json", "DENY") == (said.headers["content-type"], said.headers["x-frame-options"])
        response = place.client.get("/metrics/self", headers=bearer(other))
        assert 'limited_total{limit="reads"}' in response.text
        assert 200 == place.client.get("/livez", headers=bearer(loop)).status_code


def test_who_changes_things_in_a_loop_fills_no_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_limits, "BURST_CHANGES", 2.0)
    monkeypatch.setattr(reader_limits, "CHANGES_PER_SECOND", 0.0)
    with guarded(tmp_path, token="f" * 40) as place:
        loop = bearer(tokens.create(place.store, "loop", ("read",)))
        answers = [place.client.post("/api/v1/incidents/no.such.1/silence", headers=loop) for _ in range(3)]
        assert [404, 404, 429] == [answer.status_code for answer in answers]
        assert "changes" == answers[-1].json()["limit"]
        assert 200 == place.client.get("/api/v1/runs", headers=loop).status_code


def test_frames_are_taken_while_every_thread_of_readers_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, busy = threading.Event(), []

    def stuck(*_: Any) -> Any:
        busy.append(1)
        go_on.wait(30)
        return []

    monkeypatch.setattr(audit, "newest", stuck)
    with guarded(tmp_path, token="f" * 40) as place, ThreadPoolExecutor(2 * THREADS) as pool:
        ingest = tokens.create(place.store, "trainer", ("ingest",))
        looking = [tokens.create(place.store, f"reader {number}", ("admin",)) for number in range(2 * THREADS)]
        with httpx.Client(base_url=place.client.base_url, timeout=30) as client:
            asked = [pool.submit(client.get, "/api/v1/audit", headers=bearer(reader)) for reader in looking]
            try:
                wait_until(lambda: len(busy) == THREADS)
                stream = Stream(place.client, headers=bearer(ingest))
                train(stream, 0, 5)
                stream.send()
                assert 200 == place.client.get("/livez").status_code
                assert THREADS == len(busy)
            finally:
                go_on.set()
            assert {200} == {answer.result().status_code for answer in asked}


def spellings(token: str) -> list[dict[str, str]]:
    """Requests of one token that all are let in."""
    words = [f"Bearer {token}", f"bearer {token}", f"BEARER {token}", f"BeArEr {token}", f"Bearer   {token}"]
    return [*({"Authorization": word} for word in words), {"AUTHORIZATION": f"bEARER {token}", "Cookie": "a=b"}]


def test_one_token_is_one_reader_however_it_is_spelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_limits, "BURST_REQUESTS", 6.0)
    monkeypatch.setattr(reader_limits, "REQUESTS_PER_SECOND", 0.0)
    with guarded(tmp_path) as place:
        loop, other = (tokens.create(place.store, name, ("read",)) for name in ("loop", "other"))
        ways = spellings(loop)
        assert [200] * 6 == [place.client.get("/api/v1/runs", headers=headers).status_code for headers in ways]
        assert [429] * 6 == [place.client.get("/api/v1/runs", headers=headers).status_code for headers in ways]
        assert 200 == place.client.get("/api/v1/runs", headers=bearer(other)).status_code


def test_a_token_and_all_its_sessions_are_one_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_limits, "BURST_REQUESTS", 4.0)
    monkeypatch.setattr(reader_limits, "REQUESTS_PER_SECOND", 0.0)
    with guarded(tmp_path) as place:
        loop, other = (tokens.create(place.store, name, ("read",)) for name in ("loop", "other"))
        cookies = []
        for _ in range(4):  # each of them is asked for without a token: by address
            assert 204 == place.client.post("/api/v1/session", json={"token": loop}).status_code
            cookies.append({"Cookie": f"{COOKIE}={place.client.cookies[COOKIE]}"})
            place.client.cookies.clear()
        asked = [place.client.get("/api/v1/runs", headers=headers).status_code for headers in (*cookies, bearer(loop))]
        assert [200, 200, 200, 200, 429] == asked
        assert 429 == place.client.get("/api/v1/runs", headers={**cookies[0], "Authorization": "x"}).status_code
        assert 200 == place.client.get("/api/v1/runs", headers=bearer(other)).status_code


def test_made_up_tokens_make_no_reader_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_limits, "BURST_REQUESTS", 3.0)
    monkeypatch.setattr(reader_limits, "REQUESTS_PER_SECOND", 0.0)
    with guarded(tmp_path) as place:
        ways = [bearer(f"made up {number}") for number in range(4)]
        assert [200, 200, 200, 429] == [
            place.client.get("/api/v1/runs", headers=headers).status_code for headers in ways
        ]
        assert 429 == place.client.get("/api/v1/runs", headers={"Cookie": f"{COOKIE}=made-up"}).status_code
        right = tokens.create(place.store, "right", ("read",))
        assert 200 == place.client.get("/api/v1/runs", headers=bearer(right)).status_code


def test_six_spellings_of_a_token_keep_no_other_reader_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()

    def stuck(*_: Any) -> Any:
        go_on.wait(30)
        return []

    monkeypatch.setattr(audit, "newest", stuck)
    with guarded(tmp_path) as place, ThreadPoolExecutor(24) as pool:
        loop, other = (tokens.create(place.store, name, ("admin",)) for name in ("loop", "other"))
        with httpx.Client(base_url=place.client.base_url, timeout=30) as client:
            asked = [pool.submit(client.get, "/api/v1/audit", headers=headers) for headers in 4 * spellings(loop)]
            try:
                wait_until(
                    lambda: "ammeter" in place.client.get("/metrics/self", headers=bearer(other), timeout=5).text
                )
            finally:
                go_on.set()
            assert {200} == {answer.result().status_code for answer in asked}
