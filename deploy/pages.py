"""Prints Alertmanager's notifications: a receiver to try the stack. usage: python pages.py HOST:PORT

It uses the standard library only, so any image with Python can run it.
"""

from __future__ import annotations

import json
import sys
import textwrap
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MAX_BODY_BYTES = 4 * 2**20
"""Maximum bytes of a notification: Alertmanager sends all alerts of a group in one."""

WATCHDOG = "watchdog"
"""The path of the watchdog. This receiver notifies nobody when it stops arriving."""

_alive: set[str] = set()

MAX_ALERTS = 5
"""Alerts of a notification that are printed; of the others only the number is printed."""


def main(address: str) -> None:
    host, _, port = address.rpartition(":")
    server = ThreadingHTTPServer((host, int(port)), Receiver)
    print(f"this terminal prints pages; Alertmanager sends them to port {port}", flush=True)
    server.serve_forever()


class Receiver(BaseHTTPRequestHandler):
    """Accepts webhooks of Alertmanager at any path. The path names the recipient: /page, /ticket."""

    timeout = 10

    def do_GET(self) -> None:
        self._answer(200)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 < length <= MAX_BODY_BYTES:
            self._answer(413)
            return
        try:
            recipient, notification = self.path.strip("/") or "page", json.loads(self.rfile.read(length))
            lines = formatted(recipient, notification) if recipient != WATCHDOG else alive(notification)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._answer(400)
            return
        if lines:
            print("\n".join(lines), flush=True)
        self._answer(200)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def alive(notification: dict[str, Any]) -> list[str]:
    """Reports once that the watchdog arrives, instead of every minute."""
    name = str(notification["groupLabels"].get("alertname", "alert"))
    if name in _alive:
        return []
    _alive.add(name)
    return ["", plain(f"{name} arrives: alerts reach this receiver. It repeats every minute and is not printed again.")]


def formatted(recipient: str, notification: dict[str, Any]) -> list[str]:
    """Formats a notification: recipient, alert, affected run and remedy."""
    labels = notification["groupLabels"]
    name = labels.get("alertname", "alert")
    project = f" in project {labels['project']}" if labels.get("project") else ""
    alerts = notification["alerts"]
    lines = ["", plain(f"{recipient.upper()} {notification['status']}: {name}{project}")]
    for alert in alerts[:MAX_ALERTS]:
        notes = alert["annotations"]
        lines.append(f"  {plain(notes.get('summary', ''))}")
        if alert["status"] == "firing":
            lines += what_to_do(notes)
    if len(alerts) > MAX_ALERTS:
        lines.append(f"  and {len(alerts) - MAX_ALERTS} more")
    return lines


def what_to_do(notes: dict[str, str]) -> list[str]:
    """Returns the description, and the runbook unless the description contains it."""
    lines = [*notes.get("description", "").splitlines(), *notes.get("first_steps", "").splitlines()]
    runbook = notes.get("runbook_url", "")
    if runbook and not any(runbook in line for line in lines):
        lines.append(f"Runbook: {runbook}")
    return [short for line in lines for short in textwrap.wrap(plain(line), 116, **INDENTED)]


INDENTED: dict[str, Any] = {"initial_indent": "    ", "subsequent_indent": "    ", "break_long_words": False}


def plain(text: str) -> str:
    """Replaces terminal control characters: names come from the training programs."""
    return "".join(sign if sign.isprintable() else " " for sign in text)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1])
