"""A small disk for one test, which can be filled completely and emptied again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.parts import missing


class Disk:
    """A mounted disk. fill() uses all of its space, free() releases it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, leave: int = 0) -> None:
        """Fills the free space except for this number of bytes."""
        with self._ballast.open("ab", buffering=0) as ballast:
            while (room := shutil.disk_usage(self.folder).free - leave) > 0:
                with suppress(OSError):  # used by another process meanwhile
                    os.posix_fallocate(ballast.fileno(), os.fstat(ballast.fileno()).st_size, room)

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, size: str, *, user: str = "root") -> Iterator[Disk]:
    """A tmpfs of that size that belongs to the user.

    If none can be mounted, the test is skipped, or failed under CI.
    """
    folder.mkdir()
    options = f"size={size},mode=0700,uid={user}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode:
        missing("a small disk cannot be mounted here; run as root to see what a full one does")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", folder], check=True)
