"""The launcher's folder: settings beside the environment, and notes of Python processes.

_ammeter_startup.py runs in those processes, writes the notes and finds the folder by its name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ammeter import journal

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it


@dataclass(frozen=True)
class Note:
    """A note of one process.

    event: began, torch, armed, refused, own, failed, ended or missing. text: a version, a command line, a reason.
    """

    process: int
    event: str
    text: str


class LaunchFolder:
    """A folder that exists while the command runs.

    path: None if no folder could be created; then there are no notes.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._lock: int | None = None
        with suppress(OSError):
            self.path = _create()
            self._lock = journal.lock(self.path / "alive")
            (self.path / "notes").touch(mode=0o600)

    def write_settings(self, environment: Mapping[str, str]) -> None:
        """Writes the settings for processes that find the folder after their environment was cleared."""
        if self.path is not None:
            lines = (f"{name}={value}" for name, value in environment.items() if name.startswith("AMMETER_"))
            with suppress(OSError):
                (self.path / "environment").touch(mode=0o600)
                (self.path / "environment").write_text("\0".join(lines), encoding="utf-8", errors="surrogateescape")

    def notes(self) -> list[Note]:
        """Returns the notes so far, in order."""
        try:
            lines = (self.path / "notes").read_text(errors="replace").splitlines() if self.path else []
        except OSError:
            return []
        return [Note(int(fields[0]), *fields[1:]) for line in lines if _is_note(fields := line.split("\t"))]

    def remove(self) -> None:
        """Removes the folder. May be called twice."""
        path, self.path = self.path, None
        lock, self._lock = self._lock, None
        if lock is not None:
            journal.unlock(lock)
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
            with suppress(OSError):
                path.parent.rmdir()  # fails, as intended, while another launcher runs


def start_ticks(process: int) -> str:
    """Returns the start time of a process in kernel ticks.

    The time distinguishes processes that have the same id.
    """
    text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    return text.rpartition(")")[2].split()[19]


def _create() -> Path:
    """Creates the folder where processes of this user search for it.

    If that fails, the folder is in a place that only the environment names.
    """
    try:
        launches = journal.private_folder(SHARED_MEMORY / f"ammeter-launches-{os.geteuid()}")
        for stale in _stale(launches):
            shutil.rmtree(stale, ignore_errors=True)
        path = launches / f"{os.getpid()}.{start_ticks(os.getpid())}"
        path.mkdir(mode=0o700)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="ammeter-"))
    return path


def _stale(launches: Path) -> Iterator[Path]:
    """Yields the folders of launchers that were killed.

    A launcher in another container on the same /dev/shm has no visible process, but the lock of its folder is locked.
    """
    for folder in launches.iterdir():
        if journal.is_alive(folder):
            continue
        process, _, ticks = folder.name.partition(".")
        try:
            if not process.isdigit() or start_ticks(int(process)) != ticks:
                yield folder
        except OSError:
            yield folder


def _is_note(fields: list[str]) -> bool:
    return len(fields) == 3 and fields[0].isdigit()
