from __future__ import annotations

import math
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from ammeter.wire import columns
from ammeter_server.config.settings import Settings
from ammeter_server.db import connect
from ammeter_server.judging import cross_rank
from ammeter_server.judging.judge import Judge
from tests.server.feeding import BEGIN, Stream, serving, wait_until

SECOND = 10**9


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    with serving(tmp_path) as client:
        yield client


def ranks(client: httpx.Client, count: int = 2, run: str = "", begin: int = BEGIN) -> list[Stream]:
    run = run or str(uuid.uuid4())
    return [Stream(client, run=run, rank=rank, world_size=count, begin=begin + rank) for rank in range(count)]


def train(streams: Sequence[Stream], first: int, last: int, *scales: float) -> None:
    """Steps of ranks that share their gradients, and hold these scales."""
    for stream, scale in zip(streams, scales, strict=True):
        for step in range(first, last + 1):
            row = {
                "scale": scale,
                "growth_tracker": step,
                "applied": 1.0,
                "skipped": 0.0,
                "loss": 2.0,
                "grad_norm": 1.5,
            }
            stream.tell(step, row)


def skip_alone(streams: Sequence[Stream], rank: int, step: int) -> None:
    for stream in streams:
        odd = stream.rank == rank
        row = {"scale": 65536.0, "growth_tracker": step, "applied": 1.0 - odd, "skipped": float(odd)}
        stream.tell(step, {**row, "loss": math.nan if odd else 2.0, "grad_norm": 1.5})


def send(*streams: Stream) -> None:
    for stream in streams:
        stream.send()


def incidents(client: httpx.Client, run: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = client.get(f"/api/v1/runs/{run}/incidents").json()["items"]
    return items


def of_ranks(client: httpx.Client, run: str) -> dict[str, Any] | None:
    return next((incident for incident in incidents(client, run) if incident["verdict"] == "ranks-disagree"), None)


def test_ranks_that_part_are_one_incident_with_the_rank_that_began(client: httpx.Client) -> None:
    streams = ranks(client, 3)
    train(streams, 0, 9, *[65536.0] * 3)
    skip_alone(streams, 1, 10)
    train(streams, 11, 20, 65536.0, 32768.0, 65536.0)
    for stream in streams:
        stream.bye(20)
    send(*streams)
    across_ranks = wait_until(lambda: of_ranks(client, streams[0].run))
    assert ("page", 1, 10, 13) == (
        across_ranks["severity"],
        across_ranks["rank"],
        across_ranks["first_step"],
        across_ranks["opened_step"],
    )
    assert "In that step, the loss of rank 1 was not finite" in across_ranks["cause"]


def test_a_live_run_is_looked_at_although_no_stream_of_it_says_anything(client: httpx.Client) -> None:
    streams = ranks(client)
    train(streams, 0, 9, 65536.0, 65536.0)
    send(*streams)
    skip_alone(streams, 0, 10)
    train(streams, 11, 30, 32768.0, 65536.0)
    send(*streams)
    across_ranks = wait_until(lambda: of_ranks(client, streams[0].run))
    assert ("open", 0) == (across_ranks["state"], across_ranks["rank"])


def test_steps_that_arrive_late_and_in_pieces_are_judged_like_all(client: httpx.Client, tmp_path: Path) -> None:
    judge = Judge(store := connect(f"sqlite:///{tmp_path / 'collector.db'}"), Settings(), [])
    streams = ranks(client)
    now = BEGIN
    for first in range(0, 40, 4):
        for stream in streams:
            scale = 32768.0 if first > 12 and stream.rank else 65536.0
            train([stream], first, first + 3, scale)
            stream.send()
            judge.judge(stream.run, now := now + SECOND)
    store.close()
    across_ranks = of_ranks(client, streams[0].run)
    assert across_ranks
    assert (1, 16, 18) == (across_ranks["rank"], across_ranks["first_step"], across_ranks["opened_step"])


def test_ranks_that_were_started_again_together_have_recovered(client: httpx.Client, tmp_path: Path) -> None:
    first = ranks(client)
    train(first, 0, 9, 65536.0, 65536.0)
    train(first, 10, 20, 65536.0, 32768.0)
    send(*first)
    assert wait_until(lambda: of_ranks(client, first[0].run))
    for stream in first:
        stream.bye(20, "lost")
    send(*first)
    second = ranks(client, run=first[0].run, begin=BEGIN + 100 * SECOND)
    train(second, 0, 30, 65536.0, 65536.0)
    send(*second)
    closed = wait_until(lambda: (found := of_ranks(client, first[0].run)) and found["state"] == "closed" and found)
    assert "recovered" == closed["closed_reason"]


def test_what_one_look_has_no_time_for_is_read_by_the_next(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_rank, "MAX_READ_SECONDS", 0.0)
    streams = ranks(client)
    for first in range(0, 40, 4):
        for stream in streams:
            train([stream], first, first + 3, 32768.0 if first > 12 and stream.rank else 65536.0)
    for stream in streams:
        stream.bye(39)
    send(*streams)
    across_ranks = wait_until(lambda: of_ranks(client, streams[0].run))
    assert (1, 16, 18) == (across_ranks["rank"], across_ranks["first_step"], across_ranks["opened_step"])
    wait_until(lambda: of_ranks(client, streams[0].run)["last_step"] == 39)  # type: ignore[index]


def test_what_a_stream_concludes_is_judged_although_the_ranks_cannot_be_compared(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def torn(*_: object) -> cross_rank.RunEvaluation:
        raise columns.BadBlock("block does not unpack")

    monkeypatch.setattr(cross_rank, "evaluate_run", torn)
    streams = ranks(client)
    for stream in streams:
        stream.tell(10, {"loss": math.nan, "applied": 1.0, "skipped": 0.0})
        stream.bye(10)
    send(*streams)
    assert ["nonfinite-loss"] == [
        incident["verdict"] for incident in wait_until(lambda: incidents(client, streams[0].run))
    ]
    assert "could not be compared" in caplog.text


def test_a_run_of_one_rank_has_nothing_to_compare(client: httpx.Client) -> None:
    (stream,) = ranks(client, 1)
    train([stream], 0, 20, 65536.0)
    stream.bye(20)
    stream.send()
    wait_until(lambda: client.get(f"/api/v1/runs/{stream.run}").json()["state"] == "ended")
    assert [] == incidents(client, stream.run)


def test_a_loss_that_one_rank_lost_first_is_told_with_its_rank(client: httpx.Client) -> None:
    streams = ranks(client)
    train(streams, 0, 9, 65536.0, 65536.0)
    for stream in streams:
        for step in range(10, 14):
            loss = math.nan if stream.rank or step > 10 else 2.0
            stream.tell(step, {"scale": 65536.0, "applied": 1.0, "skipped": 0.0, "loss": loss, "grad_norm": 1.5})
        stream.bye(13)
    send(*streams)
    (told,) = wait_until(lambda: incidents(client, streams[0].run))
    wait_until(lambda: "Rank 1 was first" in incidents(client, streams[0].run)[0]["cause"])
    assert ("nonfinite-loss", 10) == (told["verdict"], incidents(client, streams[0].run)[0]["first_step"])
