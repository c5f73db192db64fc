from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from fastapi import Request

from ammeter_server.http.limits import body as request_body
from ammeter_server.http.limits.body import BodyMemory, body_of, read_body
from ammeter_server.http.problems import Problem

Message = dict[str, object]


def request(parts: Callable[[], AsyncIterator[bytes]], **headers: str) -> Request:
    """A request whose body comes in these parts."""
    coming = parts()

    async def receive() -> Message:
        try:
            return {"type": "http.request", "body": await anext(coming), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    said = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "headers": said}, receive)


async def at_once() -> AsyncIterator[bytes]:
    for _ in range(4):
        yield b"x" * 25


async def for_ever() -> AsyncIterator[bytes]:
    while True:
        await asyncio.sleep(0.01)
        yield b"x"


def refused(body: Request, limit: int = 1000) -> Problem:
    with pytest.raises(Problem) as wrong:
        asyncio.run(read_body(body, limit))
    return wrong.value


def test_a_body_up_to_its_limit_is_read_whole() -> None:
    assert b"x" * 100 == asyncio.run(read_body(request(at_once), 100))


@pytest.mark.parametrize("headers", [{}, {"content_length": "100"}, {"content_length": "10"}])
def test_one_byte_more_is_refused_with_the_limits_name(headers: dict[str, str]) -> None:
    wrong = refused(request(at_once, **headers), 99)
    assert (413, "body", 99) == (wrong.status, wrong.members["limit"], wrong.members["most"])


def test_a_byte_now_and_then_is_given_up_with_the_limits_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "GRACE_SECONDS", 0.1)
    wrong = refused(request(for_ever), 10**9)
    assert (408, "slow", {"Connection": "close"}) == (wrong.status, wrong.members["limit"], wrong.headers)


def test_a_byte_a_second_is_given_up_after_the_first_ten() -> None:
    allowed = [request_body.GRACE_SECONDS + count / request_body.MIN_BYTES_PER_SECOND for count in range(60)]
    assert 10 == next(second for second, until in enumerate(allowed) if second > until - 1)


def test_at_a_fair_pace_a_body_takes_longer_than_its_first_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fair() -> AsyncIterator[bytes]:
        for _ in range(20):
            await asyncio.sleep(0.05)
            yield bytes(1000)

    monkeypatch.setattr(request_body, "GRACE_SECONDS", 0.5)
    assert 20_000 == len(asyncio.run(read_body(request(fair), 10**9)))


def test_no_pace_makes_a_body_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_body, "MIN_BYTES_PER_SECOND", 0.001)
    monkeypatch.setattr(request_body, "MAX_BODY_SECONDS", 0.2)
    assert 408 == refused(request(for_ever), 10**9).status


def test_what_all_bodies_hold_together_is_bounded_and_given_back() -> None:
    held = BodyMemory(limit=150)

    async def two() -> tuple[int, int | None]:
        async with body_of(request(at_once), 1000, held):
            while_one = held.size
            with pytest.raises(Problem) as wrong:
                async with body_of(request(at_once), 1000, held):
                    pass
        return while_one, wrong.value.status

    assert (100, 503) == asyncio.run(two())
    assert 0 == held.size
