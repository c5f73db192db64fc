"""`ammeter-server notify test`: sends a test message to every channel and detects double paging."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import urllib3
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ammeter.verdicts import ALL
from ammeter_server.config.settings import Settings, SettingsError
from ammeter_server.incidents.runbook_text import alert_name
from ammeter_server.notify.address_redaction import address
from ammeter_server.notify.channel import open_channels
from ammeter_server.notify.channel_check import check_message, send_error

OWN = frozenset(alert_name(verdict.id) for verdict in ALL)
REMEDY = (
    "Remove the group ammeter-incidents from the rules of that Prometheus, or unset AMMETER_SERVER_ALERTMANAGER_URL."
)


class MixedError(Exception):
    """Two systems send the same alerts; the message names the one to silence."""


def test(settings: Settings, arguments: argparse.Namespace) -> int:
    """Sends a test message to every channel.

    Returns:
        0 if all channels accepted it, else 1.

    Raises:
        MixedError: Prometheus has the incident alerts too.
        SettingsError: There is no channel.
    """
    channels = open_channels(settings)
    if not channels:
        raise SettingsError(
            "there is no channel; set AMMETER_SERVER_NOTIFY, AMMETER_SERVER_NOTIFY_FILE or "
            "AMMETER_SERVER_ALERTMANAGER_URL"
        )
    if settings.alertmanagers:
        refuse_mix(settings, arguments.prometheus)
    message = check_message(settings.page_url, arguments.severity, time.time_ns())
    outcomes = [{"channel": name, "error": send_error(channel, message)} for name, channel in channels.items()]
    _print(outcomes, arguments.json)
    return 1 if any(outcome["error"] for outcome in outcomes) else 0


def refuse_mix(settings: Settings, prometheus: str | None) -> None:
    """Checks that only the collector sends incident alerts to its Alertmanagers.

    Raises:
        MixedError: Prometheus has the incident alerts, or has posted one to an Alertmanager of the collector.
    """
    if prometheus:
        groups = _get_json(f"{prometheus.rstrip('/')}/api/v1/rules?type=alert")["data"]["groups"]
        doubled = sorted({rule["name"] for group in groups for rule in group["rules"]} & OWN)
        if doubled:
            raise MixedError(
                f"the Prometheus at {address(prometheus).url} has {len(doubled)} alerts on incidents"
                f" ({doubled[0]}, ...), and the collector posts the same alerts to Alertmanager: each would fire and "
                f"resolve in turn. {REMEDY} The rules at {settings.page_url}/api/v1/rules do not contain that group"
            )
    for url in settings.alertmanagers:
        for alert in _alerts_of(url):
            name, source = alert["labels"].get("alertname"), alert.get("generatorURL", "")
            if name in OWN and "/graph?" in source:
                raise MixedError(f"the Alertmanager at {address(url).url} has {name} from {source[:200]}. {REMEDY}")


def _alerts_of(url: str) -> list[dict[str, Any]]:
    """The alerts of an Alertmanager.

    Empty if it does not respond; the test message reports that.
    """
    try:
        alerts: list[dict[str, Any]] = _get_json(f"{url.rstrip('/')}/api/v2/alerts")
    except SettingsError:
        return []
    return alerts


def _get_json(url: str) -> Any:
    target = address(url)
    shown_url = target.url.partition("?")[0]
    try:
        answer = urllib3.request("GET", target.url, headers=target.headers, timeout=10.0, retries=False)
        if answer.status != 200:
            raise SettingsError(f"{shown_url} responded with {answer.status}; check the address")
        return answer.json()
    except (urllib3.exceptions.HTTPError, json.JSONDecodeError) as error:
        reason = target.conceal(str(error))
        raise SettingsError(f"{shown_url} does not respond as expected ({reason}); check the address") from None


def _print(outcomes: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        for outcome in outcomes:
            print(json.dumps(outcome))
        return
    table = Table("channel", "test message", box=None, pad_edge=False)
    for outcome in outcomes:
        table.add_row(Text(outcome["channel"]), Text(outcome["error"] or "accepted"))
    Console().print(table)
