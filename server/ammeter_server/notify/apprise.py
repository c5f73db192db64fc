"""Everything that Apprise reaches: chat, mail, pagers, plain webhooks (json://). One URL is one channel."""

from __future__ import annotations

import hashlib
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import apprise

from ammeter_server.config.notify_routes import Route
from ammeter_server.config.settings import SettingsError
from ammeter_server.notify.address_redaction import concealing
from ammeter_server.notify.channel import Channel, DeliveryError, Message

_TYPES = {"opened": {"page": "failure", "ticket": "warning"}, "resolved": {"page": "success", "ticket": "success"}}


def channel(route: Route) -> Channel:
    """The channel behind an Apprise URL. Its name is the scheme and a hash: the URL itself holds secrets.

    The service is asked directly, not through an Apprise object, which would send from a pool of threads of its own:
    ours are enough, and it is in them that the reason of a failure is heard.
    """
    url, scheme = route.url, route.url.partition(":")[0]
    with warnings.catch_warnings():  # Apprise loads its plugins here; what they import is not ours to mend
        warnings.simplefilter("ignore", DeprecationWarning)
        service = apprise.Apprise.instantiate(url)
    if service is None:
        raise SettingsError(
            f"AMMETER_SERVER_NOTIFY or its file holds a {scheme}:// URL that Apprise does not accept; "
            "see https://github.com/caronc/apprise/wiki for the form it needs"
        )

    conceal = concealing(url)

    def send(messages: Sequence[Message]) -> None:
        (message,) = messages
        try:
            with _said() as said:
                sent = service.notify(
                    body=message["body"],
                    title=message["title"],
                    notify_type=_TYPES[message["kind"]][message["severity"]],
                    body_format=apprise.NotifyFormat.TEXT,
                )
        except Exception as error:  # noqa: BLE001 - a service's client may raise anything, and say its URL
            raise DeliveryError(conceal(f"{type(error).__name__}: {error}")[:1000]) from None
        if not sent:
            told = conceal("; ".join(said))
            raise DeliveryError(told[:1000] or "Apprise could not deliver it and did not say why")

    told = " ".join((url, *route.projects, *route.severities))
    name = f"{scheme}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"
    return Channel(name, send, projects=route.projects, severities=route.severities)


@contextmanager
def _said() -> Iterator[list[str]]:
    """What Apprise logs in this thread, from warnings up: it returns only False and logs the reason."""
    said: list[str] = []
    thread = threading.get_ident()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                said.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("apprise")
    logger.addHandler(listener)
    try:
        yield said
    finally:
        logger.removeHandler(listener)
