"""The lock that says a process lives: a POSIX record lock, which falls with its process and is not inherited."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from pathlib import Path

_held: set[tuple[int, int]] = set()
"""(device, inode) of the locks this process holds: opening and closing such a file would drop its lock."""

_FLOCK = "hhqqi"
"""struct flock of 64-bit Linux: type, whence, start, len, pid."""


def is_alive(folder: Path) -> bool:
    """Whether a process holds the stream's lock, this one included. Asks without taking it."""
    return is_locked(folder / "alive")


def is_locked(path: Path) -> bool:
    """Whether a process, this one included, holds the lock on a file; False when there is no such file."""
    return holder(path) is not None


def holder(path: Path) -> int | None:
    """The process that holds the lock on a file, 0 for one that cannot be named here; None when nobody does."""
    try:
        found = path.lstat()
        if identity(found) in _held:
            return os.getpid()
        if not stat.S_ISREG(found.st_mode):  # a link, which could lead to a file whose lock we would drop
            return None
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        kind, _, _, _, process = struct.unpack(_FLOCK, answer)
        return None if kind == fcntl.F_UNLCK else max(0, process)
    finally:
        os.close(file)


def lock(path: Path) -> int | None:
    """Takes the lock on a file, which is made if need be: its descriptor, to be closed; None when another has it."""
    if is_locked(path):
        return None
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    _held.add(identity(os.fstat(file)))
    return file


def unlock(file: int) -> None:
    """Gives a lock back. A descriptor that the program has closed, and perhaps used again, is left alone."""
    with contextlib.suppress(OSError):
        found = identity(os.fstat(file))
        if found in _held:
            _held.discard(found)
            os.close(file)


def born_locked(path: Path) -> int:
    """The descriptor of a lock file that nobody ever sees unlocked: locked under another name, then renamed."""
    draft = path.with_suffix(f".{os.getpid()}")
    file = above_standard(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    draft.rename(path)
    _held.add(identity(os.fstat(file)))
    return file


def identity(found: os.stat_result) -> tuple[int, int]:
    """(device, inode)."""
    return found.st_dev, found.st_ino


def above_standard(file: int) -> int:
    """The same open file under a number above 2: a program that closed its stdout shall not print into ours."""
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)
