"""The other owner: Prometheus scrapes a real collector, a rule fires, and a real Alertmanager tells somebody."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import forked
from tests.alerting import Alertmanager, Pager, Prometheus, alertmanager, replaced, shipped, until
from tests.e2e.processes import Collector
from tests.server.feeding import Stream, break_down, train

pytestmark = pytest.mark.long

ROOT = Path(__file__).parent.parent.parent
PAGE = "AmmeterNonfiniteGradient"


class Watch:
    """A collector that posts nothing, and those who look at it."""

    def __init__(self, collector: Collector, prometheus: Prometheus, alertmanager: Alertmanager, pager: Pager) -> None:
        self.collector = collector
        self.prometheus = prometheus
        self.alertmanager = alertmanager
        self.pager = pager

    def statuses(self, alert: str, project: str) -> list[str]:
        """Returns the statuses of the notifications of an alert, "firing" or "resolved"."""
        return [
            notification.status for notification in self.pager.of(alert) if notification.group["project"] == project
        ]

    def states(self, alert: str = PAGE) -> dict[str, str]:
        """Run -> whether Alertmanager keeps back its alert of this name."""
        held = [candidate for candidate in self.alertmanager.alerts() if candidate["labels"]["alertname"] == alert]
        return {alert["labels"]["run"]: alert["status"]["state"] for alert in held}

    def notify_test(self, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"AMMETER_SERVER_ALERTMANAGER_URL": self.alertmanager.url} | settings
        command = [sys.executable, "-m", "ammeter_server", "notify", "test", *words]
        return forked.run(command, imports=forked.COLLECTOR, env=environment, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    folder = tmp_path_factory.mktemp("watch")
    collector = Collector(folder).start()
    try:
        sooner = {"group_wait: 30s": "group_wait: 3s", "group_interval: 1m": "group_interval: 2s"}
        with alertmanager(folder / "alertmanager", sooner) as (running, pager):
            served = httpx.get(f"{collector.url}/api/v1/rules", timeout=30).text
            rules = replaced(served, {"keep_firing_for: 1m": "keep_firing_for: 1s"})
            configuration = shipped(collector.port, running.port)
            prometheus = Prometheus(folder / "prometheus", configuration, rules).start()
            try:
                yield Watch(collector, prometheus, running, pager)
            finally:
                prometheus.stop()
    finally:
        collector.stop()


@pytest.fixture
def client(watch: Watch) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=watch.collector.url, timeout=30) as client:
        yield client


def broken(client: httpx.Client, project: str, last: int = 70) -> Stream:
    """A run with a NaN in its gradients from step 60 on."""
    stream = Stream(client, project=project)
    train(stream, 0, 59)
    stream.send()
    break_down(stream, 60, last)
    stream.send()
    return stream


def test_a_fault_in_training_is_scraped_and_somebody_is_paged_with_a_runbook_that_answers(
    watch: Watch, tmp_path: Path
) -> None:
    command = [sys.executable, "trainer/broken.py", "--tiny", "--steps", "60", "--fault", "nonfinite-weights@20"]
    environment = os.environ | {"AMMETER_URL": watch.collector.url, "AMMETER_DIR": str(tmp_path / "journals")}
    forked.run(command, cwd=ROOT, env=environment, check=True, timeout=240, capture_output=True)
    notification = until(lambda: next(iter(watch.pager.of("AmmeterNonfiniteWeights")), None), "a page arrives")
    (alert,) = notification.alerts
    assert ("/page", "firing") == (notification.path, alert["status"])
    run = watch.collector.ask(f"/api/v1/runs/{alert['labels']['run']}")
    assert run["project"] == alert["labels"]["project"]
    assert f"{watch.collector.url}/runs/{run['id']}" in alert["annotations"]["description"]
    with urllib.request.urlopen(alert["annotations"]["runbook_url"], timeout=10) as answer:
        assert 200 == answer.status


def test_an_incident_that_is_over_is_resolved_and_told_once_each(watch: Watch, client: httpx.Client) -> None:
    stream = broken(client, "recovers")
    until(lambda: watch.statuses(PAGE, "recovers"), "a page arrives")
    train(stream, 71, 300)
    stream.send()
    until(lambda: len(watch.statuses(PAGE, "recovers")) > 1, "it is over")
    assert ["firing", "resolved"] == watch.statuses(PAGE, "recovers")


def test_a_runs_ticket_is_kept_back_while_its_page_fires(watch: Watch, client: httpx.Client) -> None:
    """Two runs with the same ticket, and one of them with a page: the ticket that is sent is that of the other run."""
    paged, alone = broken(client, "inhibited"), Stream(client, project="inhibited")
    for stream, first in ((paged, 71), (alone, 0)):
        train(stream, first, first + 1)
        stream.say("probe.failed", first, probe="grads", error="ValueError: strange")
        stream.send()
    tickets = {run: "suppressed" if run == paged.run else "active" for run in (paged.run, alone.run)}
    until(lambda: tickets == watch.states("AmmeterAgentBlind"), "one ticket is kept back", explain=watch.states)
    (notification,) = until(lambda: watch.pager.of("AmmeterAgentBlind"), "a ticket of the other run arrives")
    assert ("/ticket", [alone.run]) == (notification.path, [alert["labels"]["run"] for alert in notification.alerts])


def test_a_prometheus_that_was_away_tells_what_broke_meanwhile_and_nothing_twice(
    watch: Watch, client: httpx.Client
) -> None:
    broken(client, "before")
    until(lambda: watch.statuses(PAGE, "before"), "a page arrives")
    watch.prometheus.stop()
    broken(client, "meanwhile")
    until(lambda: '"meanwhile"' in client.get("/metrics").text, "there is an incident")
    assert [] == watch.statuses(PAGE, "meanwhile")
    watch.prometheus.start()
    until(lambda: watch.statuses(PAGE, "meanwhile"), "a page arrives")
    time.sleep(3)  # the group's interval, in which it would send again
    assert ["firing"] == watch.statuses(PAGE, "before") == watch.statuses(PAGE, "meanwhile")


def test_the_test_message_is_refused_while_prometheus_pages_for_incidents_too(
    watch: Watch, client: httpx.Client
) -> None:
    broken(client, "mixed")
    until(lambda: watch.statuses(PAGE, "mixed"), "a page arrives")
    found = watch.notify_test()
    assert (2, "") == (found.returncode, found.stdout)
    assert f"the Alertmanager at {watch.alertmanager.url} has Ammeter" in found.stderr
    assert "Remove the group ammeter-incidents from the rules" in found.stderr
    asked = watch.notify_test("--prometheus", watch.prometheus.url)
    assert (2, "") == (asked.returncode, asked.stdout)
    assert f"the Prometheus at {watch.prometheus.url} has" in asked.stderr


def test_the_test_message_goes_out_where_one_owner_pages(watch: Watch, tmp_path: Path) -> None:
    """The collector's: an Alertmanager of its own, and a Prometheus with the rules that such a collector serves."""
    folder = tmp_path / "alone"
    with alertmanager(folder, {"group_wait: 30s": "group_wait: 1s"}) as (running, pager):
        collector = Collector(tmp_path, "--alertmanager", running.url).start()
        rules = httpx.get(f"{collector.url}/api/v1/rules", timeout=30).text
        prometheus = Prometheus(tmp_path / "prometheus", shipped(collector.port, running.port), rules).start()
        try:
            with httpx.Client(base_url=collector.url, timeout=30) as client:
                broken(client, "one-owner")
            until(lambda: pager.of(PAGE), "the collector pages")
            settings = {"AMMETER_SERVER_ALERTMANAGER_URL": running.url}
            sent = watch.notify_test("--prometheus", prometheus.url, **settings)
        finally:
            prometheus.stop()
            collector.stop()
        assert (0, "") == (sent.returncode, sent.stderr)
        assert "accepted" in sent.stdout
        (notification,) = until(lambda: pager.of("AmmeterTest"), "the test message arrives")
    assert "No action is needed." in notification.alerts[0]["annotations"]["description"]
