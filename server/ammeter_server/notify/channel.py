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
    """name: without secrets, the same in every process. send: up to `most` messages at once; raises DeliveryError.

    holds: the other end keeps alerts instead of hearing news, as an Alertmanager does. It is told of an alert again and
    again until that is over, and for a while after. projects, severities: what it is told about; projects with * and ?.
    """

    name: str
    send: Callable[[Sequence[Message]], None]
    most: int = 1
    holds: bool = False
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
