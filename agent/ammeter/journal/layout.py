"""Where the parts of a stream lie: its folder, its segments on disk and on tmpfs, what was acknowledged."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

OFFSETS = 2**63
"""Logical offsets lie below it."""

OFFERED, REFUSED = "offered", "refused"
"""In a stream's folder: up to where it was sent, and why the collector's answers keep it here."""

RESERVED_BYTES = 16 * 2**20
"""As much as may lie on tmpfs and not on the disk when a host crashes."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

HOME = "home"
"""In a stream's folder on tmpfs: where its own folder is."""


def segments(folder: Path) -> list[tuple[int, Path]]:
    """(logical start, path) of every segment of a stream in order, wherever it lies, but for one made just now."""
    hot = hot_folder(folder)
    if hot is None:
        return sorted(_listed(folder).items())
    # The writer may go to the disk and come back between two looks, so one of them may have missed what lies before
    # the newest that was seen; one that begins when that was there has not.
    newest = max(_everywhere(hot, folder), default=-1)
    return sorted((start, path) for start, path in _everywhere(hot, folder).items() if start <= newest)


def hot_folder(folder: Path) -> Path | None:
    """Where the open segment of a stream lies when it is not in its folder."""
    return _named(folder / "hot")


def home_of(hot: Path) -> Path | None:
    """The stream's folder to which a folder on tmpfs belongs."""
    return _named(hot / HOME)


def segment_path(place: Path, offset: int) -> Path:
    return place / f"{offset:020d}.seg"


def streams(run_folder: Path) -> list[Path]:
    """The stream folders of a run's folder."""
    return sorted(path.parent for path in run_folder.glob("*/alive") if path.is_file() and not path.is_symlink())


def acknowledged(folder: Path) -> int:
    """The offset up to which the collector has committed the stream; 0 where nobody can read it."""
    try:
        offset = int(contents(folder / "ack") or 0)
    except (OSError, ValueError):
        return 0
    return offset if 0 <= offset < OFFSETS else 0


def acknowledge(folder: Path, offset: int) -> None:
    """Notes the offset up to which the collector has committed the stream."""
    replace(folder / "ack", str(offset).encode())


def offered(folder: Path) -> int:
    """The offset before which everything may have been sent: what a collector can honestly acknowledge; 0 for nothing.

    After a crash of the host the note may be older than what was sent, so the note also reserves some more.
    """
    try:
        exact, reserved, boot = contents(folder / OFFERED).decode().split()
        offset = int(exact if boot == _boot() else reserved)
    except (OSError, ValueError):
        return 0
    return offset if 0 <= offset < OFFSETS else 0


def offer(folder: Path, offset: int) -> None:
    """Notes that the stream is about to be sent up to this offset."""
    reserved = (offset // RESERVED_BYTES + 2) * RESERVED_BYTES
    replace(folder / OFFERED, f"{offset} {min(reserved, OFFSETS - 1)} {_boot()}".encode())


def refusal(folder: Path) -> str:
    """Why the collector's answers keep the stream here; empty where nothing does."""
    try:
        return contents(folder / REFUSED).decode(errors="replace")
    except OSError:
        return ""


def note_refusal(folder: Path, why: str) -> None:
    """Notes why the stream is not delivered, for who reads the journal; empty for no reason any more."""
    if why:
        replace(folder / REFUSED, why.encode())
    else:
        (folder / REFUSED).unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Writes a whole file in one go: a reader sees the old one or the new one."""
    draft = path.with_suffix(".tmp")
    with open_plain(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(data)
    draft.replace(path)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Opens a file of a journal, never through a link: a folder may be somebody else's, and we may be root.

    Raises OSError for a link, as for anything else that cannot be opened. A pipe is not waited for.
    """
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    return os.fdopen(file, "rb" if flags == os.O_RDONLY else "r+b" if flags & os.O_RDWR else "wb")


def contents(path: Path) -> bytes:
    """All of a file of a journal."""
    with open_plain(path) as file:
        return file.read()


def private_folder(path: Path) -> Path:
    """Makes a folder that only this user can enter; one that was there stays as it is.

    Raises PermissionError for a symlink, another's folder, or one that others can write: who may exchange what lies
    in it could have us read it.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        made = False
    else:
        made = True
    found = path.lstat()
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is a symlink or belongs to another user; remove it or set AMMETER_DIR elsewhere")
    if made and mode != 0o700:
        path.chmod(0o700)
    elif mode & 0o022 and not mode & stat.S_ISVTX:  # where it is sticky, others cannot exchange what is ours
        raise PermissionError(
            f"{path} can be written by others (mode {mode:o}); chmod go-w it, or set AMMETER_DIR elsewhere"
        )
    return path


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def usage(place: Path) -> int:
    return sum(size_of(path) for path in _listed(place).values())


def _boot() -> str:
    """What names this start of this machine; a dash where the system does not say."""
    try:
        return BOOT_ID.read_text().strip() or "-"
    except OSError:
        return "-"


def _named(path: Path) -> Path | None:
    """The absolute path that a file holds."""
    try:
        named = contents(path).decode()
    except (OSError, ValueError):
        return None
    return Path(named) if named.startswith("/") and "\0" not in named else None


def _everywhere(hot: Path, folder: Path) -> dict[int, Path]:
    """Looked at on both sides of the disk: segments are moved there meanwhile. What lies at both places is an open
    segment, and its copy on the disk is a little behind."""
    found = {**_listed(hot), **_listed(folder)}
    return found | _listed(hot)


def _listed(place: Path) -> dict[int, Path]:
    """Plain files named by an offset. What else lies there, a pipe or a link, would be waited on or led away by."""
    try:
        with os.scandir(place) as there:
            names = [each.name for each in there if _is_segment(each)]
    except OSError:
        return {}
    return {int(name[:-4]): place / name for name in names}


def _is_segment(entry: os.DirEntry[str]) -> bool:
    stem, _, ending = entry.name.rpartition(".")
    named = ending == "seg" and stem.isascii() and stem.isdigit() and len(stem) == 20 and int(stem) < OFFSETS
    return named and entry.is_file(follow_symlinks=False)
