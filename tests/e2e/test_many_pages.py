"""500 runs break at once, and whoever is on call can still read what arrives: by either of the two owners."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.alerting import Notification, Pager, Prometheus, alertmanager, shipped, until
from tests.e2e.processes import Collector
from tests.server.feeding import Stream, break_down, train

pytestmark = pytest.mark.long

RUNS = 500
PAGE = "AmmeterNonfiniteGradient"

GROUP_INTERVAL = 5
"""Seconds, a twelfth of the shipped interval of pages. Alerts that join a group are sent with it each time this has
passed: the number of notifications depends on how long 500 runs take to be sent and judged, not on the runs."""

SOONER = {"group_interval: 1m": f"group_interval: {GROUP_INTERVAL}s"}


@pytest.fixture(params=["the collector posts", "Prometheus asks"])
def owner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Collector, Pager]]:
    with ExitStack() as stack:
        running, pager = stack.enter_context(alertmanager(tmp_path / "alertmanager", SOONER))
        posts = ["--alertmanager", running.url] if request.param == "the collector posts" else []
        collector = Collector(tmp_path, *posts).start()
        stack.callback(collector.stop)
        rules = httpx.get(f"{collector.url}/api/v1/rules", timeout=30).text
        prometheus = Prometheus(tmp_path / "prometheus", shipped(collector.port, running.port), rules).start()
        stack.callback(prometheus.stop)
        yield collector, pager


def break_at_once(streams: Sequence[Stream]) -> None:
    """All of it is written before the first is sent: the same steps and events."""
    train(streams[0], 0, 3)
    break_down(streams[0], 4, 12)
    streams[0].pack()
    for stream in streams[1:]:
        stream.items = streams[0].items
    with ThreadPoolExecutor(8) as senders:
        list(senders.map(Stream.send, streams))


def test_500_runs_that_break_at_once_are_few_notifications_each_with_runs_that_are_new(
    owner: tuple[Collector, Pager],
) -> None:
    collector, pager = owner
    with httpx.Client(base_url=collector.url, timeout=60) as client:
        streams = [Stream(client, name=f"run-{number}") for number in range(RUNS)]
        began = time.time()
        break_at_once(streams)

    def paged_runs() -> set[str]:
        return {alert["labels"]["run"] for notification in pager.of(PAGE) for alert in notification.alerts}

    until(lambda: paged_runs() == {stream.run for stream in streams}, "all are sent", 120, lambda: len(paged_runs()))
    notified = pager.of(PAGE)
    assert {"firing"} == {notification.status for notification in notified}
    assert len(notified) <= 2 + (time.time() - began) / GROUP_INTERVAL
    assert all(new_runs(notified))


def new_runs(notifications: Sequence[Notification]) -> list[set[str]]:
    """The runs of each notification that none before it had."""
    runs = [{alert["labels"]["run"] for alert in notification.alerts} for notification in notifications]
    return [those.difference(*runs[:place]) for place, those in enumerate(runs)]
