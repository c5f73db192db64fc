"""A note that SIGTERM has ended this process, for whoever writes its goodbye.

Not a handler of Python's: that would run only once the interpreter is back from whatever it waits for, and a rank
that hangs in a collective would no longer end at SIGTERM. faulthandler's is C: it writes where the program stood into
a file, gives SIGTERM its default back and raises it again.
"""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

from ammeter.journal import TERMINATED

_file = -1


def note_termination(stream: Path) -> None:
    """From now on SIGTERM leaves a note in the stream's folder, unless the program has a handler of its own.

    A handler that it sets later replaces this one. Raises OSError when the file cannot be made.
    """
    global _file
    if not _is_ours():
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    first, _file = _file < 0, os.open(stream / TERMINATED, flags, 0o600)
    _set()
    if first:
        # A forked child, such as a DataLoader worker, is ended by SIGTERM every day: it must not have the handler for
        # a moment, so it is not there while the process forks.
        os.register_at_fork(before=_take_back, after_in_parent=_set)


def _set() -> None:
    if _is_ours():
        faulthandler.register(signal.SIGTERM, file=_file, all_threads=False, chain=True)


def _take_back() -> None:
    if _is_ours():
        faulthandler.unregister(signal.SIGTERM)


def _is_ours() -> bool:
    """Whether the program has not set a handler of its own: one of C's is not seen here."""
    return signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
