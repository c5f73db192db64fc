"""Sends alerts to an Alertmanager through its API v2. Each member of a cluster is a channel and receives every post.

The labels identify an alert and do not change while it fires; numbers and texts are in its annotations.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import urllib3

from ammeter_server.notify.address_redaction import address
from ammeter_server.notify.channel import Channel, DeliveryError, Message, RefusedError

MAX_ALERTS_PER_POST = 500
TIMEOUT = urllib3.Timeout(connect=3, read=10)

FIRING_NS = 3600 * 10**9
"""An alert fires this long after its last post, so that a restart of the collector does not end it and page again."""


def channel(url: str) -> Channel:
    """Opens the channel to the Alertmanager at this URL, such as http://127.0.0.1:9093.

    Its name is the host and port. A user and a password in the URL are sent as basic authentication and never logged.
    """
    pool = urllib3.PoolManager(timeout=TIMEOUT, retries=False)
    target, name = address(url), name_of(url)

    def send(messages: Sequence[Message]) -> None:
        now = time.time_ns()
        alerts = [_posted(message, now) for message in messages if message["kind"] != "silenced"]
        if alerts:
            post("alerts", alerts)
        for message in messages:
            if message["kind"] == "silenced":
                post("silences", message["silence"])

    def post(resource: str, content: Any) -> None:
        body, headers = json.dumps(content).encode(), {"Content-Type": "application/json", **target.headers}
        try:
            answer = pool.request("POST", f"{target.url}/api/v2/{resource}", body=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise DeliveryError(f"{name} does not respond: {target.conceal(str(error))}") from None
        if answer.status != 200:
            reason = target.conceal(answer.data[:5000].decode(errors="replace"))[:500].strip()
            failure = RefusedError if 400 <= answer.status < 500 else DeliveryError
            raise failure(f"Alertmanager answered {answer.status}: {reason}")

    return Channel(name, send, MAX_ALERTS_PER_POST, stateful=True)


def name_of(url: str) -> str:
    """'http://127.0.0.1:9093' -> 'alertmanager-127.0.0.1:9093'."""
    parts = urlsplit(url)
    return f"alertmanager-{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _posted(message: Message, now: int) -> dict[str, Any]:
    """The alert of a message with its times: the end of a resolved one, begin and expiry of a firing one.

    An alert begins when it is first posted; Alertmanager stores the earliest begin of later posts. It notifies
    group_wait after the first alert of a group began. With an older begin it would notify at once, without the other
    alerts of the same post.
    """
    resolved = message.get("over")
    if resolved:
        return {**message["alert"], "endsAt": stamp(resolved)}
    return {**message["alert"], "startsAt": stamp(now), "endsAt": stamp(now + FIRING_NS)}


def stamp(time_ns: int) -> str:
    """Nanoseconds since the epoch as RFC 3339, to the millisecond."""
    return datetime.fromtimestamp(time_ns / 10**9, UTC).isoformat(timespec="milliseconds")
