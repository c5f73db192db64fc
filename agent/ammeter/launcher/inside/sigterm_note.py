"""Leaves a note that SIGTERM has ended this process.

The process that writes the final record reads it. A Python handler would only run once the interpreter returns from its
current wait, so that a rank that hangs in a collective would no longer end at SIGTERM. The handler of faulthandler is
C: it writes the program's position to a file, restores the default of SIGTERM and raises the signal again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from ammeter.journal import TERMINATED_FILE

_file = -1


def note_termination(stream: Path) -> None:
    """Makes SIGTERM leave a note in the stream's folder.

    A program that has its own handler keeps it, and leaves no note. A handler that the program sets later replaces this
    one. Raises OSError if the file cannot be created.
    """
    global _file
    if not _has_default_handler():
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    first, _file = _file < 0, os.open(stream / TERMINATED_FILE, flags, 0o600)
    _install()
    if first:
        # A forked child, such as a DataLoader worker, is routinely ended by SIGTERM. It must never have the handler, so
        # the handler is removed while the process forks.
        os.register_at_fork(before=_remove, after_in_parent=_install)


def _install() -> None:
    if _has_default_handler():
        faulthandler.register(signal.SIGTERM, file=_file, all_threads=False, chain=True)


def _remove() -> None:
    if _has_default_handler():
        faulthandler.unregister(signal.SIGTERM)


def _has_default_handler() -> bool:
    """Returns whether the program has no handler of its own.

    Handlers in C are not visible here.
    """
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
