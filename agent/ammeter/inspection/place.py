"""The place of a checkpoint: a file or folder on this machine, or in any storage that fsspec knows.

The credentials of a store are those that its library finds by itself, in the environment or its configuration.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import fsspec

BLOCK_BYTES = 2**23
"""Bytes that are read at once from a store: large enough that the round trips do not count."""

Range = tuple[int, int]

SPARE_DISK_BYTES = 2**30
"""Free space that a copy leaves on the disk of the temporary folder, for the programs that share it."""


class Unreachable(Exception):
    """The storage does not hand out what was asked for, so that nothing is known about the checkpoint."""


class Absent(Unreachable):
    """There is nothing at the address."""


class NotJudged(Exception):
    """The checkpoint is there, but cannot be examined within the limits, or in its format."""


class Place:
    def __init__(self, address: str, storage: Any = None, path: str | None = None) -> None:
        """Finds the storage of an address such as /data/last.pt or s3://bucket/last.pt.

        Raises:
            Unreachable: no installed library knows the storage.
        """
        self.address = address
        if storage is None:
            storage, path = _asked(lambda: fsspec.core.url_to_fs(address), address)
        self.storage: Any = storage
        self.path: str = path or ""

    @property
    def is_local(self) -> bool:
        protocol = self.storage.protocol
        return "file" in ((protocol,) if isinstance(protocol, str) else protocol)

    def info(self) -> dict[str, Any]:
        """What the storage says of the file or folder."""
        found: dict[str, Any] = self._ask(self.storage.info, self.path)
        return found

    def is_folder(self) -> bool:
        return self.info().get("type") == "directory"

    def exists(self) -> bool:
        try:
            return bool(self.info())
        except Absent:
            return False

    def size(self) -> int:
        """The bytes of a file, or of the files directly in a folder."""
        info = self.info()
        return int(info.get("size") or 0) if info.get("type") != "directory" else sum(self.sizes().values())

    def sizes(self) -> dict[str, int]:
        """Name -> bytes of the files directly in this folder."""
        self.storage.invalidate_cache()
        entries = self._ask(lambda path: self.storage.ls(path, detail=True), self.path)
        return {_last(entry["name"]): int(entry["size"]) for entry in entries if entry["type"] == "file"}

    def modified(self) -> float | None:
        """When the file was written, in seconds since the epoch; None if the storage does not say."""
        self.storage.invalidate_cache()
        try:
            return float(self._ask(self.storage.modified, self.path).timestamp())
        except NotImplementedError:
            return None

    def inside(self, name: str) -> Place:
        """The place of an entry of this folder."""
        return Place(f"{self.address.rstrip('/')}/{name}", self.storage, f"{self.path.rstrip('/')}/{name}")

    def read(self, start: int, end: int) -> bytes:
        """The bytes of a file from start up to end; fewer if it ends before."""
        return bytes(self._ask(lambda path: self.storage.cat_file(path, start=start, end=end), self.path))

    def read_ranges(self, ranges: Iterable[Range]) -> Iterator[bytes]:
        """Yields the bytes of each range (start, end) of a file, in their order there; small ones are read together."""
        for together in _joined(ranges):
            first = together[0][0]
            content = self.read(first, together[-1][1])
            yield from (content[start - first : end - first] for start, end in together)

    @contextmanager
    def on_this_machine(self) -> Iterator[str]:
        """A path under which the file can be mapped.

        A file of a store is copied into the temporary folder, under no name: nothing remains of it if the process dies.

        Raises:
            NotJudged: the disk has no room for the copy.
        """
        if self.is_local:
            yield self.path
            return
        folder, size = tempfile.gettempdir(), self.size()
        if size + SPARE_DISK_BYTES > shutil.disk_usage(folder).free:
            raise NotJudged(f"{folder} has no room for a copy of {size} bytes; set TMPDIR to a folder that has")
        with tempfile.TemporaryFile() as copy:
            self._ask(self._copy, copy)
            yield f"/proc/{os.getpid()}/fd/{copy.fileno()}"

    def _copy(self, target: Any) -> None:
        with self.storage.open(self.path, "rb") as source:
            shutil.copyfileobj(source, target, BLOCK_BYTES)
        target.flush()

    def _ask(self, what: Callable[[Any], Any], argument: Any) -> Any:
        return _asked(lambda: what(argument), self.address)


def _asked(what: Callable[[], Any], address: str) -> Any:
    """Asks a storage. Each has errors of its own, which all mean that it did not answer.

    Raises:
        Unreachable: with the error.
    """
    try:
        return what()
    except (NotImplementedError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise Absent(f"{address} does not exist") from error
    except Exception as error:
        message = str(error).splitlines()[0][:200] if str(error) else ""
        raise Unreachable(f"{address} cannot be read ({type(error).__name__}: {message})") from error


def _joined(ranges: Iterable[Range]) -> Iterator[list[Range]]:
    """Joins ranges to lists that span at most BLOCK_BYTES, or have one range."""
    together: list[Range] = []
    for found in ranges:
        if together and found[1] - together[0][0] > BLOCK_BYTES:
            yield together
            together = []
        together.append(found)
    if together:
        yield together


def _last(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]
