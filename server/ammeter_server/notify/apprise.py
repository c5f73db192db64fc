"""Sends messages through Apprise: chat, mail, pagers, webhooks (json://). One URL is one channel."""

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

_TYPES = {
    "opened": {"page": "failure", "ticket": "warning"},
    "resolved": {"page": "success", "ticket": "success"},
    "report": {"ticket": "info"},
}


def channel(route: Route) -> Channel:
    """Opens the channel of an Apprise URL. Its name is the scheme and a hash, because the URL contains secrets.

    It calls the service directly. An Apprise object would send from its own thread pool, and the reason of a failure
    is logged in the sending thread only.
    """
    url, scheme = route.url, route.url.partition(":")[0]
    with warnings.catch_warnings():  # Apprise loads its plugins here, which import deprecated modules
        warnings.simplefilter("ignore", DeprecationWarning)
        service = apprise.Apprise.instantiate(url)
    if service is None:
        raise SettingsError(
            f"AMMETER_SERVER_NOTIFY or its file contains a {scheme}:// URL that Apprise does not accept; "
            "see https://github.com/caronc/apprise/wiki for the form it needs"
        )

    conceal = concealing(url)

    def send(messages: Sequence[Message]) -> None:
        (message,) = messages
        try:
            with _warnings() as reasons:
                sent = service.notify(
                    body=message["body"],
                    title=message["title"],
                    notify_type=_TYPES[message["kind"]][message["severity"]],
                    body_format=apprise.NotifyFormat.TEXT,
                )
        except Exception as error:  # noqa: BLE001 - a service's client may raise any error, with its URL
            raise DeliveryError(conceal(f"{type(error).__name__}: {error}")[:1000]) from None
        if not sent:
            reason = conceal("; ".join(reasons))
            raise DeliveryError(reason[:1000] or "Apprise could not deliver the message and gave no reason")

    identity = " ".join((url, *route.filter.words))
    name = f"{scheme}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    return Channel(name, send, filter=route.filter)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collects Apprise's warnings of this thread: it returns only False, and logs the reason."""
    messages: list[str] = []
    thread = threading.get_ident()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.thread == thread:
                messages.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("apprise")
    logger.addHandler(listener)
    try:
        yield messages
    finally:
        logger.removeHandler(listener)
