"""Who else on this machine can read or replace a file, by the permissions along its whole path."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator


def exposure(path: str) -> tuple[str, list[str]]:
    """(octal permissions such as '0644', what everybody on the machine can do: 'read', 'replace').

    A private folder anywhere above makes a file private. A folder that everybody can write to lets them replace what
    is in it, unless it is sticky as /tmp is. Of the group nothing is said: who is in it is not asked here. Raises
    OSError where the file is not there.
    """
    real = os.path.realpath(path)
    mode = os.stat(real).st_mode
    folders = list(_above(real))
    reachable = all(each & stat.S_IXOTH for each in folders)
    found = []
    if reachable and mode & stat.S_IROTH:
        found.append("read")
    if (reachable and mode & stat.S_IWOTH) or _can_be_exchanged(folders) or _can_be_exchanged(list(_above(path))):
        found.append("replace")
    return f"{stat.S_IMODE(mode):04o}", found


def _above(path: str) -> Iterator[int]:
    """Modes of the folders that lead to a path, from the root on."""
    parts = os.path.dirname(os.path.abspath(path)).split(os.sep)
    for end in range(1, len(parts) + 1):
        yield os.stat(os.sep.join(parts[:end]) or os.sep).st_mode


def _can_be_exchanged(folders: list[int]) -> bool:
    """Whether everybody can exchange an entry of one of these folders, and gets there."""
    for mode in folders:
        if not mode & stat.S_IXOTH:
            return False
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return True
    return False
