"""GET /api/v1/channels: the channels of notifications with their latest deliveries, and a test of one."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

from ammeter_server.api.incidents import Severity
from ammeter_server.auth import callers
from ammeter_server.auth.project_access import Project
from ammeter_server.config.links import Links
from ammeter_server.context import ContextDep
from ammeter_server.db import Connection, Row
from ammeter_server.db.json_safe import instant
from ammeter_server.db.queries import audit, outbox
from ammeter_server.http.problems import Problem
from ammeter_server.notify.channel import Channel
from ammeter_server.notify.channel_check import check_message, send_error
from ammeter_server.runs import tool_links

router = APIRouter(prefix="/api/v1/channels", tags=["channels"])

MAX_DELIVERIES = 50
"""Deliveries of a channel in a response, the newest."""


@dataclass(frozen=True)
class ChannelDelivery:
    """A notification on a channel; its members are those of an incident's deliveries, and the incident.

    Attributes:
        state: `pending`, `told`, `sent` or `failed`.
        links: Addresses in other tools, as those of an incident in the list of all runs.
    """

    incident: str
    run: str
    run_name: str
    verdict: str
    title: str
    severity: Severity
    kind: str
    state: str
    attempts: int
    error: str | None
    created: str | None
    due: str | None
    sent: str | None
    links: dict[str, str]


@dataclass(frozen=True)
class AlertChannel:
    """A channel.

    Attributes:
        name: The scheme of its URL and a hash, or the host of an Alertmanager.
        stateful: Whether it is an Alertmanager, which receives an alert repeatedly.
        receives: The conditions of its incidents; empty for all.
        deliveries: Its newest notifications, newest first.
    """

    name: str
    stateful: bool
    receives: list[str]
    deliveries: list[ChannelDelivery]


@dataclass(frozen=True)
class AlertChannels:
    items: list[AlertChannel]


@dataclass(frozen=True)
class ChannelTest:
    """The result of a test. error: what the receiver or the connection said; null if it was accepted."""

    channel: str
    error: str | None


def _channels(request: Request) -> Mapping[str, Channel]:
    channels: Mapping[str, Channel] = request.app.state.channels
    return channels


Channels = Annotated[Mapping[str, Channel], Depends(_channels)]
Administering = Annotated[callers.Caller, Depends(callers.administer)]


@router.get("", summary="Channels of notifications")
def list_channels(context: ContextDep, project: Project, channels: Channels) -> AlertChannels:
    """Lists the configured channels with their newest notifications."""
    with context.store.reading() as connection:
        deliveries = {name: outbox.newest_of_channel(connection, name, MAX_DELIVERIES, project) for name in channels}
        links = {name: _links(connection, context.settings.links, rows) for name, rows in deliveries.items()}
    return AlertChannels(
        [
            AlertChannel(
                name,
                channel.stateful,
                list(channel.filter.words),
                list(map(_delivery, deliveries[name], links[name])),
            )
            for name, channel in channels.items()
        ]
    )


@router.post("/{channel}/test", summary="Send a test message to a channel")
def send_check(
    context: ContextDep, channels: Channels, caller: Administering, channel: str, severity: Severity = "ticket"
) -> ChannelTest:
    """Sends a message through the channel that says it is a test. Needs scope admin.

    Status 404 if there is no such channel. The result is in the audit log.
    """
    found = channels.get(channel)
    if found is None:
        raise Problem(404, f"there is no channel {channel[:80]!r}; GET /api/v1/channels lists all channels")
    now = time.time_ns()
    error = send_error(found, check_message(context.settings.page_url, severity, now))
    with context.store.writing() as connection:
        audit.add(connection, now, caller.name, "channel.tested", channel, error or "accepted")
    return ChannelTest(channel, error)


def _links(connection: Connection, links: Links, rows: Sequence[Row[Any]]) -> list[dict[str, str]]:
    places = [tool_links.Place(row.run, row.stream, row.verdict) for row in rows]
    return tool_links.of_incidents(connection, links, places)


def _delivery(row: Row[Any], links: dict[str, str]) -> ChannelDelivery:
    values = row._asdict() | {"links": links}
    for name in ("created", "due", "sent"):
        values[name] = instant(values[name])
    if row.state not in outbox.LIVE:
        values["due"] = None
    return ChannelDelivery(**{name: values[name] for name in ChannelDelivery.__dataclass_fields__})
