"""Closes a session when the process ends, with the error that ends it."""

from __future__ import annotations

import atexit
import multiprocessing.util
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ammeter.recording.session import Session


def close_at_exit(session: Session, await_delivery: Callable[[], None]) -> None:
    """Closes the session when the process ends.

    Uses atexit, and multiprocessing's Finalize for children that end without atexit.
    """

    def close() -> None:
        error = _fatal_error()
        if error is None:
            closed = session.close("exit")
        else:
            lines = "".join(traceback.format_exception_only(error))
            closed = session.close("exception", " ".join(lines.split()))
        if closed:
            await_delivery()

    atexit.register(close)
    finalizer = multiprocessing.util.Finalize(None, close, exitpriority=100)

    def unregister() -> None:
        atexit.unregister(close)
        finalizer.cancel()

    session.on_close(unregister)


def _fatal_error() -> BaseException | None:
    """Returns the error that ends this process, if any.

    Either an uncaught error, or the one behind the exit code of a multiprocessing child.
    """
    error = sys.exc_info()[1] or (None if _is_interactive() else getattr(sys, "last_value", None))
    if isinstance(error, SystemExit):
        error = error.__context__ if error.code else None
    return error


def _is_interactive() -> bool:
    """Whether an error ends only a notebook cell or console line, not the program."""
    trace = getattr(sys, "last_traceback", None)
    return hasattr(sys, "ps1") or (trace is not None and trace.tb_frame.f_globals.get("__name__") == "code")
