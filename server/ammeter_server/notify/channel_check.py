"""A message that shows whether a channel reaches people."""

from __future__ import annotations

from ammeter_server.notify.alertmanager import stamp
from ammeter_server.notify.channel import Channel, Message

MINUTE_NS = 60 * 10**9
"""After this the alert of the test ends in Alertmanager."""


def check_message(page_url: str, severity: str, now: int) -> Message:
    """Returns a message for every kind of channel that says it is a test."""
    body = f"A test of the channels of the Ammeter collector at {page_url}. No action is needed."
    title = "[test] Ammeter can reach you"
    alert = {
        "labels": {"alertname": "AmmeterTest", "severity": severity},
        "annotations": {"summary": title, "description": body},
        "startsAt": stamp(now),
        "generatorURL": page_url,
    }
    notification = {"kind": "opened", "severity": severity, "title": title, "body": body}
    return {**notification, "alert": alert, "over": now + MINUTE_NS}


def send_error(channel: Channel, message: Message) -> str | None:
    """Sends a message; returns the error, without secrets, or None if the receiver accepted it."""
    try:
        channel.send([message])
    except Exception as error:  # noqa: BLE001 - the error is the result
        return str(error) or type(error).__name__
    return None
