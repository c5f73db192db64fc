from __future__ import annotations

from pathlib import Path

import pytest

from ammeter_server.http.limits import rate
from ammeter_server.http.limits.rate import BURST_REQUESTS, MAX_CLIENTS, REQUESTS_PER_SECOND, RateLimiter
from tests.server.ingest.senders import Sender, opened


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def taken(of: RateLimiter, stream: str, most: int) -> int:
    """How many requests of a stream are taken at this moment."""
    return next((number for number in range(most) if of.is_over(stream)), most)


def test_a_burst_is_taken_and_then_so_many_a_second() -> None:
    clock = Clock()
    of = rate.of_streams(clock)
    assert BURST_REQUESTS == taken(of, "a", 10_000)
    clock.now += 0.1
    assert REQUESTS_PER_SECOND / 10 == pytest.approx(taken(of, "a", 10_000), abs=1)
    clock.now += 1000
    assert BURST_REQUESTS == taken(of, "a", 10_000)


def test_a_stream_gone_wild_holds_up_no_other() -> None:
    of = rate.of_streams(Clock())
    taken(of, "wild", 10_000)
    assert 10 == taken(of, "calm", 10)


def test_what_is_remembered_does_not_grow_without_end() -> None:
    of = rate.of_streams(Clock())
    for number in range(MAX_CLIENTS + 100):
        rate.check(of, "run", f"{number}")
    assert MAX_CLIENTS == len(of._buckets)


def test_who_asks_too_often_is_told_when_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate, "BURST_REQUESTS", 3.0)
    monkeypatch.setattr(rate, "REQUESTS_PER_SECOND", 0.0)
    with opened(tmp_path) as place:
        sender = Sender(place.client, place.store)
        answers = [sender.post([], 0, 0) for _ in range(5)]
        assert [200, 200, 200, 429, 429] == [answer.status_code for answer in answers]
        assert ("requests", "1") == (answers[-1].json()["limit"], answers[-1].headers["retry-after"])
        assert 'limited_total{limit="requests"}' in place.client.get("/metrics/self").text
