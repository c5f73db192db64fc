"""The collector's log: one line per record, whatever text it contains; tracebacks are indented."""

from __future__ import annotations

import faulthandler
import logging
import math
import signal
import sys
import time
from collections.abc import Callable

from ammeter.redaction import Redactor
from ammeter.wire import printable
from ammeter_server.process.activity_log import DONE, REFUSED

_redactor = Redactor(remembers=False)

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
INDENTATION = "\n    | "

HTTP_SERVER = "uvicorn.error"
WORKERS = "ammeter_server.worker"
THROTTLED = (HTTP_SERVER, REFUSED, WORKERS)
"""Loggers of invalid requests, of refusals, and of database faults, after which workers retry within a second."""

THROTTLE_SECONDS = 60.0
"""Seconds between two lines with the same text. It applies to invalid requests, which clients can send without end, and
to an unreachable database, perhaps all night."""

MAX_THROTTLED_LINES = 1_000
"""Lines of one minute that are remembered. Sources beyond it share a line: addresses may be without number."""


class OneLine(logging.Formatter):
    """Escapes control characters and marks that reverse text.

    No text can therefore look like another record, move a terminal's cursor or read backwards.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = printable.escaped(_redactor.text(record.message.rstrip()))
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        lines = _redactor.text(super().formatException(ei)).splitlines()  # type: ignore[arg-type]
        return "    | " + INDENTATION.join(map(printable.escaped, lines))


class WithoutApprise(logging.Filter):
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
        self._lines: dict[tuple[str, str], tuple[float, int]] = {}
        """By text and source: when it was last logged, and the number of suppressed lines since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in THROTTLED or record.levelno > logging.WARNING:
            return True
        key = self._key(record)
        logged, suppressed = self._lines.get(key, (-math.inf, 0))
        if self._clock() - logged < THROTTLE_SECONDS:
            self._lines[key] = logged, suppressed + 1
            return False
        self._lines[key] = self._clock(), 0
        if suppressed:
            record.msg = f"{record.msg} ({suppressed} more since the last such line)"
        return True

    def _key(self, record: logging.LogRecord) -> tuple[str, str]:
        text = record.getMessage() if record.name == WORKERS else record.msg  # clients may choose the other parts
        key = text, getattr(record, "source", None) or ""
        if key in self._lines or len(self._lines) < MAX_THROTTLED_LINES:
            return key
        begin = self._clock() - THROTTLE_SECONDS
        self._lines = {known: line for known, line in list(self._lines.items()) if line[0] > begin}
        return key if len(self._lines) < MAX_THROTTLED_LINES else (text, "")


def dump_stacks_on_signal() -> None:
    """Registers SIGUSR1, which writes the stack of every thread to standard error.

    It works even if all threads wait for a lock or the database.
    """
    faulthandler.register(signal.SIGUSR1)


def write_to_standard_error() -> None:
    """Logs actions, refusals and all warnings to standard error, including uvicorn's."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    handler.addFilter(WithoutApprise())
    handler.addFilter(LogThrottle())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (DONE, REFUSED):
        logging.getLogger(name).setLevel(logging.INFO)
