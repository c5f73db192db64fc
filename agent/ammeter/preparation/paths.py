"""Finds the path of a checkpoint from the object that it is read from or written to."""

from __future__ import annotations

import os
from typing import Any


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
