"""From a fault in a training process to a person's pager: the collector posts to a real Alertmanager."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import forked
from tests.alerting import Alertmanager, Pager, alertmanager, until
from tests.e2e.processes import Collector, slowness
from tests.server.feeding import Stream, break_down, train

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
REPEATED_EVERY_SECOND = {"ammeter_server.notify.delivery.ALERT_REPEAT_NS": 10**9}


@pytest.fixture
def alerting(tmp_path: Path) -> Iterator[tuple[Alertmanager, Pager]]:
    with alertmanager(tmp_path / "alertmanager") as running:
        yield running


@pytest.fixture
def collector(tmp_path: Path, alerting: tuple[Alertmanager, Pager]) -> Iterator[Collector]:
    (tmp_path / "server").mkdir()
    words = ("--alertmanager", alerting[0].url)
    started = Collector(tmp_path / "server", *words, constants=REPEATED_EVERY_SECOND).start()
    yield started
    started.stop()


def broken(client: httpx.Client, name: str = "nightly", project: str = "demo") -> Stream:
    """A run with a NaN in its gradients from step 60 on."""
    stream = Stream(client, name=name, project=project)
    train(stream, 0, 59)
    stream.send()
    break_down(stream, 60, 70)
    stream.send()
    return stream


def test_a_fault_in_training_reaches_the_pager_with_what_to_do_and_a_runbook_that_answers(
    tmp_path: Path, collector: Collector, alerting: tuple[Alertmanager, Pager]
) -> None:
    _, pager = alerting
    command = [sys.executable, "trainer/broken.py", "--tiny", "--steps", "60", "--fault", "nonfinite-weights@20"]
    environment = os.environ | {"AMMETER_URL": collector.url, "AMMETER_DIR": str(tmp_path / "journals")}
    forked.run(command, cwd=ROOT, env=environment, check=True, timeout=240, capture_output=True)
    notification = until(lambda: next(iter(pager.of("AmmeterNonfiniteWeights")), None), "somebody is paged")
    (alert,) = notification.alerts
    assert ("/page", "firing") == (notification.path, alert["status"])
    assert "Fix: " in alert["annotations"]["description"]
    assert alert["labels"]["run"] in alert["generatorURL"]
    with urllib.request.urlopen(alert["annotations"]["runbook_url"], timeout=10) as answer:
        assert 200 == answer.status


def test_an_incident_that_is_over_is_resolved_and_told_once_each(
    collector: Collector, alerting: tuple[Alertmanager, Pager]
) -> None:
    with httpx.Client(base_url=collector.url, timeout=30) as client:
        stream = broken(client)
        until(lambda: alerting[1].of("AmmeterNonfiniteGradient"), "somebody is paged")
        train(stream, 71, 300)
        stream.send()
    both = until(
        lambda: len(alerting[1].of("AmmeterNonfiniteGradient")) > 1 and alerting[1].of("AmmeterNonfiniteGradient"),
        "it is over",
    )
    assert ["firing", "resolved"] == [notification.status for notification in both]


def test_whoever_was_paged_about_a_run_gets_none_of_its_tickets(
    collector: Collector, alerting: tuple[Alertmanager, Pager]
) -> None:
    with httpx.Client(base_url=collector.url, timeout=30) as client:
        broken(client)
    until(lambda: alerting[1].of("AmmeterNonfiniteGradient"), "somebody is paged")
    assert {"/page"} == {notification.path for notification in alerting[1].notifications}


def test_what_is_silenced_in_ammeter_is_silenced_there(
    collector: Collector, alerting: tuple[Alertmanager, Pager]
) -> None:
    with httpx.Client(base_url=collector.url, timeout=30) as client:
        broken(client)
        (incident,) = until(lambda: client.get("/api/v1/incidents").json()["items"], "there is an incident")
        answer = client.post(f"/api/v1/incidents/{incident['id']}/silence", headers={"X-Ammeter-Request": "test"})
        assert 200 == answer.status_code
    until(
        lambda: [alert for alert in alerting[0].alerts() if alert["status"]["state"] == "suppressed"], "it is silenced"
    )


def test_an_alertmanager_that_was_away_loses_no_page(
    tmp_path: Path, collector: Collector, alerting: tuple[Alertmanager, Pager]
) -> None:
    away, pager = alerting
    away.stop()
    with httpx.Client(base_url=collector.url, timeout=30) as client:
        broken(client)
        until(lambda: collector.ask("/api/v1/incidents?state=open")["items"], "there is an incident")
        assert [] == pager.notifications
        away.start()
    until(lambda: pager.of("AmmeterNonfiniteGradient"), "somebody is paged")


def test_no_restart_repeats_a_page(collector: Collector, alerting: tuple[Alertmanager, Pager]) -> None:
    """Nor loses the end: the collector is killed, and Alertmanager forgets what fires when it stops."""
    running, pager = alerting
    with httpx.Client(base_url=collector.url, timeout=30) as client:
        stream = broken(client)
        until(lambda: pager.of("AmmeterNonfiniteGradient"), "somebody is paged")
        collector.kill()
        collector.start()
        running.stop()
        running.start()
        until(lambda: running.alerts(), "the alert fires there again", 90)
        before = running.flushes()
        until(lambda: running.flushes() > before + 1, "the group was due again, which could send it again")
        assert ["firing"] == [notification.status for notification in pager.of("AmmeterNonfiniteGradient")]
        train(stream, 71, 300)
        stream.send()
    until(lambda: pager.of("AmmeterNonfiniteGradient")[-1].status == "resolved", "it is over")
    assert ["firing", "resolved"] == [notification.status for notification in pager.of("AmmeterNonfiniteGradient")]


def test_runs_that_break_one_after_the_other_are_one_page_within_five_seconds_and_no_more_for_a_while(
    tmp_path: Path,
) -> None:
    """With the intervals that are shipped: alerts that join the group are sent when its minute is over."""
    with alertmanager(tmp_path / "shipped", {}) as (running, pager):
        (tmp_path / "server").mkdir()
        collector = Collector(tmp_path / "server", "--alertmanager", running.url).start()
        try:
            with httpx.Client(base_url=collector.url, timeout=30) as client:
                began = time.time()
                broken(client, "first")
                (first,) = until(lambda: pager.of("AmmeterNonfiniteGradient"), "somebody is paged")
                assert first.at - began < 5 * slowness() + 2  # of which two are for the requests of this test

                def runs() -> int:
                    return len({alert["labels"]["run"] for alert in running.alerts()})

                for number in range(2, 5):
                    broken(client, f"run {number}")
                    until(lambda count=number: runs() == count, "the next one has joined")  # type: ignore[misc]
                    time.sleep(1.5)  # longer than the first one of a group waits
            assert [first] == pager.of("AmmeterNonfiniteGradient")
        finally:
            collector.stop()
