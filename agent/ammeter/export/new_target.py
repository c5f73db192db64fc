"""Creates the file or folder of an export, which is complete or not there at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ammeter.export.errors import ExportFailed


@contextmanager
def new_file(target: str, force: bool) -> Iterator[Path]:
    """Yields the path of a draft, which becomes the file when the block ends without an error.

    Raises:
        ExportFailed: the file exists and `force` is not given, it is a device or a pipe, or its folder does not exist.
    """
    path = Path(target)
    if path.is_dir():
        raise ExportFailed(f"{target!r} is a folder; name a file in it")
    if path.exists() and not force:
        raise ExportFailed(f"{target!r} exists; name another file, or replace it with --force")
    if path.exists() and not path.is_file():
        raise ExportFailed(f"{target!r} is a device or a pipe; name a file")
    if not path.parent.is_dir():
        raise ExportFailed(f"the folder {str(path.parent)!r} does not exist; create it first")
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def new_folder(target: str) -> Iterator[Path]:
    """Yields a new folder, created with those above it, or an empty one; an error removes what the block has written.

    Raises:
        ExportFailed: it is a file, or contains anything.
    """
    path = Path(target)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ExportFailed(f"{target!r} exists and is not an empty folder; name another one")
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise
