"""Alertmanager, through its API v2. Each member of a cluster is a channel of its own: every one gets every post.

What an alert is stands in its labels and never changes while it fires; numbers and words stand in its annotations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import urllib3

from ammeter_server.config.links import Links
from ammeter_server.incidents.lifecycle import Incident
from ammeter_server.incidents.runbook_text import first_steps
from ammeter_server.incidents.wording import alert_name, title_of
from ammeter_server.notify.address_redaction import address
from ammeter_server.notify.channel import Channel, DeliveryError, Message, RefusedError

MAX_ALERTS_PER_POST = 500
"""Alerts in one request."""

TIMEOUT = urllib3.Timeout(connect=3, read=10)

FIRING_NS = 3600 * 10**9
"""For how long an alert fires on when no collector says anything more: a restart must not end it, and page again."""


def channel(url: str) -> Channel:
    """The channel to the Alertmanager at this URL, such as http://127.0.0.1:9093. Its name is the host and port; a user
    and a password in the URL are sent as basic authentication, and told nobody."""
    pool = urllib3.PoolManager(timeout=TIMEOUT, retries=False)
    asked, name = address(url), name_of(url)

    def send(messages: Sequence[Message]) -> None:
        now = time.time_ns()
        alerts = [_posted(message, now) for message in messages if message["kind"] != "silenced"]
        if alerts:
            post("alerts", alerts)
        for each in messages:
            if each["kind"] == "silenced":
                post("silences", each["silence"])

    def post(what: str, content: Any) -> None:
        body, headers = json.dumps(content).encode(), {"Content-Type": "application/json", **asked.headers}
        try:
            answer = pool.request("POST", f"{asked.url}/api/v2/{what}", body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise DeliveryError(f"no Alertmanager answers as {name}: {asked.conceal(str(error))}") from None
        if answer.status != 200:
            said = asked.conceal(answer.data[:5000].decode(errors="replace"))[:500].strip()
            failure = RefusedError if 400 <= answer.status < 500 else DeliveryError
            raise failure(f"Alertmanager answered {answer.status}: {said}")

    return Channel(name, send, MAX_ALERTS_PER_POST, stateful=True)


def name_of(url: str) -> str:
    """'http://127.0.0.1:9093' -> 'alertmanager-127.0.0.1:9093'."""
    parts = urlsplit(url)
    return f"alertmanager-{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def alert(incident: Incident, body: str, run_name: str, project: str, links: Links) -> dict[str, Any]:
    """An incident as Alertmanager keeps it."""
    labels = {
        "alertname": alert_name(incident.verdict),
        "severity": incident.severity,
        "project": project,
        "run": incident.run,
        "verdict": incident.verdict,
    }
    annotations = {
        "summary": title_of(incident, run_name),
        "description": body,
        "runbook_url": links.runbook(incident.verdict),
        "first_steps": first_steps(incident.verdict),
    }
    return {
        "labels": {name: value for name, value in labels.items() if value},
        "annotations": {name: value for name, value in annotations.items() if value},
        "startsAt": stamp(incident.opened),
        "generatorURL": links.run(incident.run),
    }


def silence(labels: Mapping[str, str], until: int, by: str, now: int) -> dict[str, Any]:
    """A silence of exactly one alert, whatever its severity becomes."""
    matchers = [
        {"name": name, "value": labels[name], "isRegex": False, "isEqual": True}
        for name in ("alertname", "run", "project")
        if name in labels
    ]
    comment = "silenced in Ammeter"
    return {
        "matchers": matchers,
        "startsAt": stamp(now),
        "endsAt": stamp(until),
        "createdBy": by or "Ammeter",
        "comment": comment,
    }


def _posted(message: Message, now: int) -> dict[str, Any]:
    """As it goes out: that it is over and since when, or that it fires, and until when if nobody says more.

    What fires begins when it is first posted; of later posts Alertmanager keeps the earliest. A group is told
    group_wait after its first alert began, so of an older one at once, without the others of the same post.
    """
    over = message.get("over")
    if over:
        return {**message["alert"], "endsAt": stamp(over)}
    return {**message["alert"], "startsAt": stamp(now), "endsAt": stamp(now + FIRING_NS)}


def stamp(moment: int) -> str:
    """Nanoseconds since the epoch as RFC 3339, to the millisecond."""
    return datetime.fromtimestamp(moment / 10**9, UTC).isoformat(timespec="milliseconds")
