"""How an incident reaches a person. A channel is a name and a function that sends; the outbox does the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ammeter_server.settings import Settings

Message = dict[str, Any]


class DeliveryError(RuntimeError):
    """A channel could not deliver; the text says what its other end answered."""


@dataclass(frozen=True)
class Channel:
    """name: without secrets, the same in every process. send: raises DeliveryError."""

    name: str
    send: Callable[[Message], None]


def open_channels(settings: Settings) -> dict[str, Channel]:
    """The configured channels by name, ready to send. Raises SettingsError for an address nobody can deliver to."""
    if not settings.notify:
        return {}
    from ammeter_server.channels.apprise import channel  # its import takes a second, so only who needs it pays

    return {each.name: each for each in map(channel, settings.notify)}
