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

_noted: list[int] = []


def note_termination(stream: Path) -> None:
    """From now on SIGTERM leaves a note in the stream's folder, unless the program has a handler of its own.

    A handler that it sets later replaces this one. Raises OSError when the file cannot be made.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.open(stream / TERMINATED, flags, 0o600)
    faulthandler.register(signal.SIGTERM, file=file, all_threads=False, chain=True)
    if not _noted:
        os.register_at_fork(after_in_child=_forget)
    _noted.append(file)


def _forget() -> None:
    """A forked child, such as a DataLoader worker, is ended by SIGTERM every day: that is not the run's end."""
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        faulthandler.unregister(signal.SIGTERM)
