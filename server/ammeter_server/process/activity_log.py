"""Activity log of the collector: one line per incident, notification, refusal or similar action.

Format: `incident.opened incident=... run=... severity=page`, a name and key=value pairs. Values are quoted as JSON
strings if necessary. Lines contain no secrets: headers and queries of requests are never logged.
"""

from __future__ import annotations

import json
import logging
import re

from ammeter.wire import printable

DONE = "ammeter_server.done"
REFUSED = "ammeter_server.refused"
"""Loggers: of actions, each of which is logged, and of refusals, which clients can cause without end and which are
logged once a minute."""

MAX_VALUE_CHARS = 200

_done, _refused = logging.getLogger(DONE), logging.getLogger(REFUSED)
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


def done(action: str, **values: object) -> None:
    """Logs an action. Values that are None are omitted."""
    _done.info("%s%s", action, _pairs(values))


def refused(action: str, reason: str, *, source: str | None = None, **values: object) -> None:
    """Logs a refused request.

    Args:
        reason: A value from a small set, such as a limit or a status. The log has one line a minute per value and
            source, with the number of suppressed ones.
        source: The client's address. Without it, all clients share the line.
    """
    _refused.info(f"{action} {reason}%s", _pairs({"source": source, **values}), extra={"source": source})


def _pairs(values: dict[str, object]) -> str:
    return "".join(f" {name}={_value(str(value))}" for name, value in values.items() if value is not None)


def _value(text: str) -> str:
    short = printable.shortened(text, MAX_VALUE_CHARS)
    return short if _PLAIN.fullmatch(short) else json.dumps(short, ensure_ascii=False)
