"""What the client offers to those who act on incidents, at a real collector."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ammeter.client import Client, Delivery, NotFoundError, RefusedError, UnauthorizedError, UnreachableError
from tests.agent.client.conftest import Fleet
from tests.agent.client.test_requests import server
from tests.e2e.processes import Collector, free_port
from tests.server.feeding import STEP, Stream, break_down, serving, train, wait_until


@pytest.fixture
def client(fleet: Fleet) -> Client:
    return Client(fleet.url)


@pytest.fixture
def incident(client: Client, fleet: Fleet) -> str:
    return next(client.incidents(fleet.broken.run, verdict="nonfinite-gradient")).id


def test_an_incident_has_its_context(client: Client, incident: str) -> None:
    context = client.context(incident)
    assert ("running", "node-1", "") == (context.run_state, context.host, context.owner)
    assert context.weights.state in ("safe", "finite", "unknown")
    assert (None, None) == (context.checkpoint, context.dollars_per_hour)
    assert {"log": None, "board": None, "silence": None} == context.links


def test_the_reach_of_an_incident_is_the_runs_that_share_something(client: Client, incident: str) -> None:
    reach = client.reach(incident)
    assert client.incident(incident).opened == reach.since
    assert ("verdict", "nonfinite-gradient", 0) == (reach.items[0].by, reach.items[0].value, reach.items[0].runs)
    assert "host" in [related.by for related in reach.items]


def test_an_unknown_incident_has_no_context(client: Client) -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        client.context("nobody")


def test_small_curves_come_in_the_requested_order(client: Client, fleet: Fleet) -> None:
    found = client.sparklines([fleet.broken.run, "nobody", fleet.healthy.run], ["loss", "grad_norm"], values=10)
    assert [fleet.broken.run, fleet.healthy.run] == [lines.run for lines in found]
    last = found[0].series["grad_norm"][-1]
    assert isinstance(last, float)
    assert math.isnan(last)
    assert 10 == len(found[1].series["loss"])
    assert [] == client.sparklines([])


def test_runs_are_selected_by_search_tag_and_open_incidents(client: Client, fleet: Fleet) -> None:
    assert [fleet.healthy.run] == [run.id for run in client.runs(search="fp32")]
    assert 2 == len(list(client.runs(tag="team=speech")))
    assert [] == list(client.runs(tag=["team=speech", "team=vision"]))
    assert [] == list(client.runs(owner="lena"))
    assert fleet.healthy.run not in [run.id for run in client.runs(broken=True)]


def test_a_run_that_ended_is_not_asked(client: Client, fleet: Fleet) -> None:
    with pytest.raises(RefusedError, match="only a run that sends steps can be asked"):
        client.ask(fleet.healthy.run)
    assert [] == client.directives(fleet.healthy.run)


def test_a_live_run_is_asked_for_a_reading(client: Client, fleet: Fleet) -> None:
    with httpx.Client(base_url=fleet.url, timeout=30) as feeding:
        live = Stream(feeding, name="live", project="asked", begin=time.time_ns() - 10 * STEP)
        train(live, 0, 5)
        live.send()
        (directive,) = client.ask(live.run, steps=7)
        assert ("origin", 7, 1, 0) == (directive.arm, directive.steps, directive.ranks, directive.delivered_to)
        live.say("directive.done", 4, id=directive.id, arm="origin", bad_steps=0)
        live.send()
        ((answer,),) = [asked.answers for asked in client.directives(live.run)]
        assert ("directive.done", 0, 0) == (answer.name, answer.rank, answer.data["bad_steps"])
        live.bye(5)
        live.send()


@pytest.fixture(scope="module")
def notifying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("notifying")
    collector = Collector(folder, "--notify", f"json://127.0.0.1:{free_port()}/").start()
    yield collector.url
    collector.stop()


def test_a_channel_is_tested(notifying: str) -> None:
    client = Client(notifying)
    (channel,) = client.channels()
    assert (False, [], []) == (channel.stateful, channel.receives, channel.deliveries)
    result = client.test_channel(channel.name, "page")
    assert channel.name == result.channel
    assert "127.0.0.1" in (result.error or "")
    with pytest.raises(NotFoundError, match="there is no channel 'nobody'"):
        client.test_channel("nobody")


def test_an_incident_has_its_notifications(tmp_path: Path) -> None:
    with server() as receiver:
        for _ in range(16):
            receiver.say(200, {})
        channels = (receiver.url.replace("http", "json") + "/", f"json://127.0.0.1:{free_port()}/gone")
        with serving(tmp_path, notify=channels) as feeding:
            stream = Stream(feeding, begin=time.time_ns() - 60 * STEP)
            train(stream, 0, 40)
            break_down(stream, 41, 50)
            stream.send()
            client = Client(str(feeding.base_url))
            incident = wait_until(lambda: next(client.incidents(stream.run, verdict="nonfinite-gradient"), None))
            assert incident is not None

            def tried() -> list[Delivery]:
                found = client.deliveries(incident.id)
                return found if len(found) == 2 and all(one.sent or one.error for one in found) else []

            gone, reached = sorted(wait_until(tried), key=lambda delivery: delivery.sent is not None)
            assert ("opened", "sent", None, None) == (reached.kind, reached.state, reached.error, reached.due)
            assert reached.created is not None
            assert reached.sent is not None
            assert reached.created <= reached.sent
            assert ("opened", "pending", None) == (gone.kind, gone.state, gone.sent)
            assert "127.0.0.1" in (gone.error or "")
            assert gone.due is not None
            assert {gone.channel, reached.channel} == {channel.name for channel in client.channels()}


def test_an_incident_without_a_channel_has_no_notifications(client: Client, incident: str) -> None:
    assert [] == client.deliveries(incident)
    with pytest.raises(NotFoundError, match="nobody"):
        client.deliveries("nobody")


def test_what_would_act_twice_is_sent_once() -> None:
    with server() as told:
        for _ in range(2):
            told.say(503, {"detail": "the database does not respond"}, Retry_After="0")
        with pytest.raises(UnreachableError, match="the database does not respond"):
            Client(told.url).ask("r")
        with pytest.raises(UnreachableError, match="the database does not respond"):
            Client(told.url).test_channel("c")
    paths = ["/api/v1/runs/r/directives?arm=origin", "/api/v1/channels/c/test?severity=ticket"]
    assert [("POST", path) for path in paths] == told.requests


def test_a_refused_test_names_the_scope_that_it_needs() -> None:
    with server() as told:
        told.say(403, {"detail": "the token has not the scope admin"})
        with pytest.raises(UnauthorizedError, match="--scopes admin"):
            Client(told.url, token="t").test_channel("c")
