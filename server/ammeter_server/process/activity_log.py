"""What the collector does, a line of its log each: what opens, closes, is sent, is refused.

`incident.opened incident=... run=... severity=page`: a name, then key=value, values in JSON's quotes where they need
any. No secrets: what is said of a request is never its headers or its query.
"""

from __future__ import annotations

import json
import logging
import re

DONE = "ammeter_server.done"
REFUSED = "ammeter_server.refused"
"""Loggers: of what was done, each told, and of what anybody can make happen without end, told once a minute."""

MAX_VALUE_CHARS = 200

_done, _refused = logging.getLogger(DONE), logging.getLogger(REFUSED)
_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


def done(what: str, **values: object) -> None:
    """Writes that something was done. Values that are None are left out."""
    _done.info("%s%s", what, _said(values))


def refused(what: str, why: str, **values: object) -> None:
    """Writes that a request was refused. why: of few words there are, such as a limit or a status: one line a minute
    is written of each, and how many there were in between."""
    _refused.info(f"{what} {why}%s", _said(values))


def _said(values: dict[str, object]) -> str:
    return "".join(f" {name}={_value(str(value))}" for name, value in values.items() if value is not None)


def _value(text: str) -> str:
    cut = text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
    return cut if _PLAIN.fullmatch(cut) else json.dumps(cut, ensure_ascii=False)
