"""The collector's log: one line per record, whatever text it contains; tracebacks are indented."""

from __future__ import annotations

import faulthandler
import logging
import signal
import sys
import time
from collections.abc import Callable

from ammeter.redaction import Redactor
from ammeter.wire import printable
from ammeter_server.process.activity_log import DONE, REFUSED

_redactor = Redactor(remembers=False)

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SET_IN = "\n    | "

STRANGERS = "uvicorn.error"
STRANGE = (STRANGERS, REFUSED)
PATIENT = ("ammeter_server.judging.worker", "ammeter_server.maintenance.worker")
"""Loggers that warn of database trouble and retry within a second."""

THROTTLE_SECONDS = 60.0
"""Seconds between two lines with the same text. It applies to invalid requests, which clients can send without end, and
to an unreachable database, perhaps all night."""


class OneLine(logging.Formatter):
    """Escapes control characters and marks that reverse text.

    No text can therefore look like another record, move a terminal's cursor or read backwards.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable.escaped(_redactor.text(record.message.rstrip()))
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        lines = _redactor.text(super().formatException(ei)).splitlines()  # type: ignore[arg-type]
        return "    | " + SET_IN.join(map(printable.escaped, lines))


class Ours(logging.Filter):
    """Drops Apprise's own records, which may contain tokens of URLs; the outbox logs each delivery."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.name.partition(".")[0] != "apprise"


class LogThrottle(logging.Filter):
    """Limits repeated lines to one a minute, with the number of suppressed ones.

    Errors always pass.

    Args:
        clock: Monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in (*STRANGE, *PATIENT) or record.levelno > logging.WARNING:
            return True
        words = record.msg if record.name in STRANGE else record.getMessage()  # clients may choose the other parts
        at, more = self._told.get(words, (-THROTTLE_SECONDS, 0))
        if self._clock() - at < THROTTLE_SECONDS:
            self._told[words] = at, more + 1
            return False
        self._told[words] = self._clock(), 0
        if more:
            record.msg = f"{record.msg} ({more} more since the last such line)"
        return True


def tell_where_it_stands_when_asked() -> None:
    """Registers SIGUSR1, which writes the stack of every thread to standard error.

    It works even if all threads wait for a lock or the database.
    """
    faulthandler.register(signal.SIGUSR1)


def write_to_standard_error() -> None:
    """Logs actions, refusals and all warnings to standard error, including uvicorn's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    handler.addFilter(Ours())
    handler.addFilter(LogThrottle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (DONE, REFUSED):
        logging.getLogger(name).setLevel(logging.INFO)
