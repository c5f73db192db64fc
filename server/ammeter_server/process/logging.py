"""The collector's log: one line per record, whatever a run or a service said in it; tracebacks are set in."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Callable

from ammeter.redaction import Redactor
from ammeter_server.process.activity_log import DONE, REFUSED

_redactor = Redactor(remembers=False)

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SET_IN = "\n    | "

STRANGERS = "uvicorn.error"
STRANGE = (STRANGERS, REFUSED)
PATIENT = ("ammeter_server.judging.worker", "ammeter_server.maintenance.worker")
"""They warn of what the database keeps them from, and try again within a second."""

THROTTLE_SECONDS = 60.0
"""Seconds between two lines of the same words about requests that are none, which anybody can send without end, or
about a database that is away, perhaps all night."""


class OneLine(logging.Formatter):
    """Control characters and marks that turn text round are written as escapes, so that nothing looks like a record
    of ours, moves a terminal's cursor, or reads backwards."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = escaped(_redactor.text(record.message.rstrip()))
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        lines = _redactor.text(super().formatException(ei)).splitlines()  # type: ignore[arg-type]
        return "    | " + SET_IN.join(map(escaped, lines))


class Ours(logging.Filter):
    """Not what Apprise says by itself, which may hold tokens of its URLs: the outbox tells what became of a message."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] != "apprise"


class LogThrottle(logging.Filter):
    """Of what comes again and again, a line a minute, with how many there were in between. Faults are always told.

    clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in (*STRANGE, *PATIENT) or record.levelno > logging.WARNING:
            return True
        words = record.msg if record.name in STRANGE else record.getMessage()  # strangers may choose the rest
        at, more = self._told.get(words, (-THROTTLE_SECONDS, 0))
        if self._clock() - at < THROTTLE_SECONDS:
            self._told[words] = at, more + 1
            return False
        self._told[words] = self._clock(), 0
        if more:
            record.msg = f"{record.msg} ({more} more since the last such line)"
        return True


def escaped(text: str) -> str:
    """The text on one line; what cannot be printed as an escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def tell_where_it_stands_when_asked() -> None:
    """SIGUSR1 writes what every thread is at to standard error, also where a lock or the database keeps all of them."""
    faulthandler.register(signal.SIGUSR1)


def write_to_standard_error() -> None:
    """What was done and what was refused, and from warnings on; of uvicorn, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    handler.addFilter(Ours())
    handler.addFilter(LogThrottle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (DONE, REFUSED):
        logging.getLogger(name).setLevel(logging.INFO)
