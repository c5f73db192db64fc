"""Finds the path, size and exposure of a checkpoint's files."""

from __future__ import annotations

import os
from typing import Any

from ammeter.probes.checkpoint.exposure import Exposure, exposure

MAX_FILES = 1000
"""Files of a distributed checkpoint whose sizes are added up, to bound the number of stat calls."""

UNKNOWN_EXPOSURE = Exposure("", [], "")
"""The exposure of a buffer or of a file in remote storage, about which nothing is known."""


def path_of(file: Any) -> str:
    """The path of a file, given by name or as an object; '' for buffers."""
    name = file if isinstance(file, str | os.PathLike) else getattr(file, "name", "")
    storage, path = getattr(file, "fs", None), getattr(file, "path", None)
    if hasattr(storage, "unstrip_protocol") and isinstance(path, str):
        return path_in_storage(storage, path)
    return os.fspath(name) if isinstance(name, str | os.PathLike) else ""


def path_in_storage(storage: Any, path: str) -> str:
    """A path in fsspec storage, with its protocol unless the file is local."""
    address: str = storage.unstrip_protocol(storage._strip_protocol(path))
    return address.removeprefix("file://").removeprefix("local://")


def folder_of(storage: Any) -> str:
    """The folder of a distributed checkpoint's reader or writer."""
    return path_of(getattr(storage, "checkpoint_id", None) or getattr(storage, "path", ""))


def absolute(path: str) -> str:
    """The absolute path, because findings are read elsewhere and later; unchanged with a protocol."""
    return path if not path or "://" in path else os.path.abspath(path)


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


def _files(path: str) -> list[str]:
    if not path or not os.path.isdir(path):
        return [path] if path else []
    with os.scandir(path) as entries:
        return [entry.path for entry in entries if entry.is_file()]
