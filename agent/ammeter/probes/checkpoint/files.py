"""Finds the size and exposure of a checkpoint's files."""

from __future__ import annotations

import itertools
import os
from typing import Any

from ammeter.probes.checkpoint.exposure import Exposure, exposure

MAX_FILES = 1000
"""Files of a distributed checkpoint whose sizes are added up, to bound the number of stat calls."""

UNKNOWN_EXPOSURE = Exposure("", [], "")
"""The exposure of a buffer or of a file in remote storage, about which nothing is known."""


def size_and_exposure(path: str) -> dict[str, Any]:
    """Size and exposure of a file as event data, unknown if it does not exist.

    The exposure of a distributed checkpoint is that of its first file.
    """
    try:
        files = _files(path)[:MAX_FILES]
        size = sum(os.stat(file).st_size for file in files) if files else None
        access = exposure(files[0]) if files else UNKNOWN_EXPOSURE
    except OSError:
        size, access = None, UNKNOWN_EXPOSURE
    return {"bytes": size, "mode": access.mode, "exposed": access.abilities, "by": access.by}


def moved(path: str, inode: int) -> str:
    """Returns where a file is now: at its path, or under another name in its folder, as after os.replace().

    A path is returned as it is if its file is in neither place.
    """
    if os.path.exists(path):
        return path
    try:
        with os.scandir(os.path.dirname(path)) as entries:
            first = itertools.islice(entries, MAX_FILES)
            return next((entry.path for entry in first if entry.inode() == inode and entry.is_file()), path)
    except OSError:
        return path


def _files(path: str) -> list[str]:
    if not path or not os.path.isdir(path):
        return [path] if path else []
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_file()]
