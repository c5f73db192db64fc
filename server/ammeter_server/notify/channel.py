"""Channels that carry notifications to people: a name and a function that sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ammeter_server.config.notify_routes import EVERYTHING, Filter, Route, Subject, wanting
from ammeter_server.config.settings import Settings

Message = dict[str, Any]


class DeliveryError(RuntimeError):
    """A channel could not deliver. The text contains the receiver's answer."""


class RefusedError(DeliveryError):
    """The receiver has refused at least one of the messages."""


@dataclass(frozen=True)
class Channel:
    """One destination of notifications.

    Attributes:
        name: Without secrets, the same in every process.
        send: Sends up to `most` messages at once. Raises DeliveryError.
        stateful: The receiver stores alerts, as an Alertmanager does. An alert is sent repeatedly until it is resolved,
            and for a while after that.
        filter: The incidents that go there.
    """

    name: str
    send: Callable[[Sequence[Message]], None]
    most: int = 1
    stateful: bool = False
    filter: Filter = EVERYTHING


def receivers(channels: Sequence[Channel], subject: Subject) -> list[Channel]:
    """Returns the channels that receive a subject."""
    wanted = wanting([channel.filter for channel in channels], subject)
    return [channel for channel, wants in zip(channels, wanted, strict=True) if wants]


def open_channels(settings: Settings) -> dict[str, Channel]:
    """Opens the configured channels, by name. Raises SettingsError for an address without a known service."""
    channels: list[Channel] = []
    routes = [*map(Route, settings.notify), *settings.routes]
    if routes:
        from ammeter_server.notify.apprise import channel  # its import takes a second

        channels += map(channel, routes)
    if settings.alertmanagers:
        from ammeter_server.notify import alertmanager

        channels += map(alertmanager.channel, settings.alertmanagers)
    return {opened.name: opened for opened in channels}
