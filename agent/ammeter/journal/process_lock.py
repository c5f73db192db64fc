"""The liveness lock of a process: a POSIX record lock.

The kernel releases it when the process ends. Child processes do not inherit it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from pathlib import Path

_own_locks: set[tuple[int, int]] = set()
"""(device, inode) of the locks of this process. Opening and closing such a file would release its lock."""

_FLOCK = "hhqqi"
"""struct flock of 64-bit Linux: type, whence, start, len, pid."""


def is_alive(folder: Path) -> bool:
    """Returns whether any process, this one included, holds the stream's lock.

    The lock is only queried, not acquired.
    """
    return is_locked(folder / "alive")


def is_locked(path: Path) -> bool:
    """Returns whether any process holds the lock on a file; False without a file."""
    return lock_owner(path) is not None


def lock_owner(path: Path) -> int | None:
    """Returns the id of the process that holds the lock on a file, or None.

    The id is 0 for a process that has no id in this PID namespace.
    """
    try:
        status = path.lstat()
        if file_id(status) in _own_locks:
            return os.getpid()
        if not stat.S_ISREG(status.st_mode):  # through a link, close() could release a lock of this process
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
    """Acquires the lock on a file, which is created if necessary.

    Returns:
        The descriptor, which the caller releases with unlock(); None if another process holds the lock.
    """
    if is_locked(path):
        return None
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    _own_locks.add(file_id(os.fstat(file)))
    return file


def unlock(file: int) -> None:
    """Releases a lock. A descriptor that the program has closed, and perhaps reused, is ignored."""
    with contextlib.suppress(OSError):
        lock_id = file_id(os.fstat(file))
        if lock_id in _own_locks:
            _own_locks.discard(lock_id)
            os.close(file)


def create_locked(path: Path) -> int:
    """Creates a lock file that is never visible unlocked, and returns its descriptor.

    The file is locked under another name and then renamed.
    """
    draft = path.with_suffix(f".{os.getpid()}")
    file = above_standard(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    draft.rename(path)
    _own_locks.add(file_id(os.fstat(file)))
    return file


def file_id(status: os.stat_result) -> tuple[int, int]:
    """Returns (device, inode)."""
    return status.st_dev, status.st_ino


def is_open_as(file: int, identity: tuple[int, int]) -> bool:
    """Returns whether a descriptor still refers to the file with this identity.

    A program that closes all its descriptors may get this number again for another file.
    """
    try:
        return file_id(os.fstat(file)) == identity
    except OSError:
        return False


def above_standard(file: int) -> int:
    """Returns the same open file with a descriptor above 2.

    A program that closed its stdout would otherwise print into this file.
    """
    if file > 2:
        return file
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(file)
