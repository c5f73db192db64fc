"""How an incident reaches a person. A channel is a name and a function that sends; the outbox does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ammeter_server.config.notify_routes import Route
from ammeter_server.config.settings import Settings

Message = dict[str, Any]


class DeliveryError(RuntimeError):
    """A channel could not deliver; the text says what its other end answered."""


class RefusedError(DeliveryError):
    """The other end answered, and said no to one of the messages at least."""


@dataclass(frozen=True)
class Channel:
    """One destination of notifications.

    Attributes:
        name: Without secrets, the same in every process.
        send: Sends up to `most` messages at once. Raises DeliveryError.
        stateful: The receiver stores alerts, as an Alertmanager does. An alert is sent repeatedly until it is resolved,
            and for a while after that.
        projects: Patterns with * and ? of the projects whose incidents go there; empty for all.
        severities: The severities that go there; empty for all.
    """

    name: str
    send: Callable[[Sequence[Message]], None]
    most: int = 1
    stateful: bool = False
    projects: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()

    def wants(self, project: str, severity: str) -> bool:
        """Whether incidents of this kind go there."""
        return (not self.severities or severity in self.severities) and (
            not self.projects or any(fnmatchcase(project, each) for each in self.projects)
        )


def open_channels(settings: Settings) -> dict[str, Channel]:
    """The configured channels by name, ready to send. Raises SettingsError for an address nobody can deliver to."""
    found: list[Channel] = []
    routes = [*map(Route, settings.notify), *settings.routes]
    if routes:
        from ammeter_server.notify.apprise import channel  # its import takes a second, so only who needs it pays

        found += map(channel, routes)
    if settings.alertmanagers:
        from ammeter_server.notify import alertmanager

        found += map(alertmanager.channel, settings.alertmanagers)
    return {each.name: each for each in found}
