"""Checks that a run's fault is visible on the collector, in Alertmanager and in Prometheus."""

from __future__ import annotations

import json
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deploy.place import Place

HEALTH_TIMEOUT_SECONDS = 60.0
"""Time limit for all sights: two scrapes of Prometheus, with a margin."""

_straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Sight:
    """One place to see the fault.

    where: a description. link: the URL for a person. seen: whether the fault is visible now.
    """

    where: str
    link: str
    seen: Callable[[], bool]


def sights(place: Place, token: str, run: str, verdict: str) -> list[Sight]:
    """Returns the sights of the services that run here."""
    names = ("collector", "alertmanager", "prometheus")
    collector, alertmanager, prometheus = (f"http://{place.address(name)}" for name in names)
    wanted = f'ammeter_incident_active{{run="{run}",verdict="{verdict}"}}'
    query = urllib.parse.quote(wanted)
    of_the_run = urllib.parse.quote(f'run="{run}"')

    def on_the_page() -> bool:
        found = get(f"{collector}/api/v1/runs/{run}/incidents", token) or {"items": []}
        return any(each["verdict"] == verdict for each in found["items"])

    def in_alertmanager() -> bool:
        alerts = get(f"{alertmanager}/api/v2/alerts?filter={of_the_run}") or []
        return any(verdict in each["annotations"].get("runbook_url", "") for each in alerts)

    def in_prometheus() -> bool:
        return bool((get(f"{prometheus}/api/v1/query?query={query}") or {"data": {"result": []}})["data"]["result"])

    all_of_them = {
        "collector": Sight("on the page", f"{collector}/runs/{run}", on_the_page),
        "alertmanager": Sight("in Alertmanager", f"{alertmanager}/#/alerts?filter=%7B{of_the_run}%7D", in_alertmanager),
        "prometheus": Sight("in Prometheus", f"{prometheus}/graph?g0.tab=1&g0.expr={query}", in_prometheus),
    }
    return [sight for name, sight in all_of_them.items() if name not in place.missing]


def look(wanted: list[Sight], check: Callable[[], None]) -> Iterator[Sight]:
    """Yields each sight when the fault appears there, until all appeared or time runs out.

    check is called while waiting and raises to stop.
    """
    left, deadline = list(wanted), time.monotonic() + HEALTH_TIMEOUT_SECONDS
    while left and time.monotonic() < deadline:
        check()
        for sight in [each for each in left if each.seen()]:
            left.remove(sight)
            yield sight
        time.sleep(0.25)


def answers(url: str) -> bool:
    """Whether the URL answers with 200."""
    try:
        with _straight.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def get(url: str, token: str = "") -> Any:
    """Returns the JSON at the URL, or None if there is none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _straight.open(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None
