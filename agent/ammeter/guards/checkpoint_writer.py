"""Writes a state file that is either complete, private and readable, or absent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch

from ammeter.journal import private_folder
from ammeter.redaction import text


class Unreadable(ValueError):
    """Raised if a file cannot be read back as it was written."""


def write(path: Path, state: dict[str, Any]) -> int:
    """Writes a private file with torch.save: mode 0600, in a folder of mode 0700.

    Returns its size in bytes. The file is synced and loaded again with weights_only=True, and renamed only if every
    number is the same. Raises OSError if that fails, Unreadable if the content differs.
    """
    private_folder(path.parent)
    draft = path.with_suffix(".writing")
    draft.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(draft, _CREATE_FLAGS, 0o600), "wb") as file:
            file.raw.name = str(path)  # type: ignore[attr-defined] # events name the final path
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        _verify(draft, path, state)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    return path.stat().st_size


def checksum(state: Any) -> str:
    """Computes the SHA-256 of a state: names, types and the bytes of every tensor."""
    digest = hashlib.sha256()
    _add(digest, state)
    return digest.hexdigest()


def _verify(draft: Path, path: Path, state: dict[str, Any]) -> None:
    try:
        with draft.open("rb") as file:
            file.raw.name = str(path)  # type: ignore[attr-defined] # as above: events name the saved path
            loaded = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        message = text(str(error).splitlines()[0], 200) if str(error) else ""
        raise Unreadable(f"weights_only=True does not load it ({type(error).__name__}: {message})") from error
    if checksum(loaded) != checksum(state):
        raise Unreadable("the values that were read back differ from those that were written")


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{plain.dtype}{tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, dict):
        digest.update(b"{")
        for name, element in value.items():
            digest.update(f"{name!r}:".encode())
            _add(digest, element)
    elif isinstance(value, list | tuple):
        digest.update(b"[")
        for member in value:
            _add(digest, member)
    else:
        digest.update(f"{value!r},".encode())


def _sync(folder: Path) -> None:
    """Syncs the folder: until then a power failure can undo the rename."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
