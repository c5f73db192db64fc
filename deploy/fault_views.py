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

VIEW_TIMEOUT_SECONDS = 60.0
"""Time limit for all views: two scrapes of Prometheus, with a margin."""

_without_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class FaultView:
    """One place to see the fault.

    where: a description. link: the URL for a person. is_visible: whether the fault is visible now.
    """

    where: str
    link: str
    is_visible: Callable[[], bool]


def fault_views(place: Place, token: str, run: str, verdict: str) -> list[FaultView]:
    """Returns the views of the services that run here."""
    names = ("collector", "alertmanager", "prometheus")
    collector, alertmanager, prometheus = (f"http://{place.address(name)}" for name in names)
    series = f'ammeter_incident_active{{run="{run}",verdict="{verdict}"}}'
    query = urllib.parse.quote(series)
    of_the_run = urllib.parse.quote(f'run="{run}"')

    def on_the_page() -> bool:
        incidents = get(f"{collector}/api/v1/runs/{run}/incidents", token) or {"items": []}
        return any(incident["verdict"] == verdict for incident in incidents["items"])

    def in_alertmanager() -> bool:
        alerts = get(f"{alertmanager}/api/v2/alerts?filter={of_the_run}") or []
        return any(verdict in alert["annotations"].get("runbook_url", "") for alert in alerts)

    def in_prometheus() -> bool:
        return bool((get(f"{prometheus}/api/v1/query?query={query}") or {"data": {"result": []}})["data"]["result"])

    all_of_them = {
        "collector": FaultView("on the page", f"{collector}/runs/{run}", on_the_page),
        "alertmanager": FaultView(
            "in Alertmanager", f"{alertmanager}/#/alerts?filter=%7B{of_the_run}%7D", in_alertmanager
        ),
        "prometheus": FaultView("in Prometheus", f"{prometheus}/graph?g0.tab=1&g0.expr={query}", in_prometheus),
    }
    return [view for name, view in all_of_them.items() if name not in place.missing]


def wait_for_views(views: list[FaultView], check: Callable[[], None]) -> Iterator[FaultView]:
    """Yields each view when the fault appears there, until all appeared or time runs out.

    check is called while waiting and raises to stop.
    """
    pending_views, deadline = list(views), time.monotonic() + VIEW_TIMEOUT_SECONDS
    while pending_views and time.monotonic() < deadline:
        check()
        for view in [view for view in pending_views if view.is_visible()]:
            pending_views.remove(view)
            yield view
        time.sleep(0.25)


def answers(url: str) -> bool:
    """Whether the URL answers with 200."""
    try:
        with _without_proxy.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def get(url: str, token: str = "") -> Any:
    """Returns the JSON at the URL, or None if there is none."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        with _without_proxy.open(urllib.request.Request(url, headers=headers), timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None
