"""The collector's log: one line per record, whatever a run or a service said in it; tracebacks are set in."""

from __future__ import annotations

import logging
import sys

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
SET_IN = "\n    | "


class OneLine(logging.Formatter):
    """Control characters and marks that turn text round are written as escapes, so that nothing looks like a record
    of ours, moves a terminal's cursor, or reads backwards."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        record.message = escaped(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        lines = super().formatException(ei).splitlines()  # type: ignore[arg-type]
        return "    | " + SET_IN.join(map(escaped, lines))


def escaped(text: str) -> str:
    """The text on one line; what cannot be printed as an escape."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def write_to_standard_error() -> None:
    """From warnings on; of uvicorn, too."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
