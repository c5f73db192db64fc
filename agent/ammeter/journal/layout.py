"""Paths and small files of a stream: its folder, segments on disk and tmpfs, notes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from ammeter.journal.process_lock import above_standard

OFFSET_LIMIT = 2**63
"""Logical offsets are smaller than this, so that they fit into int64."""

OFFERED_FILE, REFUSAL_FILE = "offered", "refused"
"""Files in a stream's folder: the offset up to which it was sent, and why the collector refuses it."""

RESERVED_BYTES = 16 * 2**20
"""The most data of a stream that can be on tmpfs and not on disk when a host crashes."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

HOME_FILE = "home"
"""File in a stream's folder on tmpfs that contains the path of the stream's folder on disk."""


def segments(folder: Path) -> list[tuple[int, Path]]:
    """Lists (logical start, path) of a stream's segments in order, on disk and on tmpfs.

    A segment that is created during the call may be missing.
    """
    hot = hot_folder(folder)
    if hot is None:
        return sorted(_list_segments(folder).items())
    # The writer may switch to the disk and back between two listings, so that one listing misses segments before the
    # newest that it saw. All segments up to that one existed before the second pass, which therefore finds them.
    newest = max(_list_both(hot, folder), default=-1)
    return sorted((start, path) for start, path in _list_both(hot, folder).items() if start <= newest)


def hot_folder(folder: Path) -> Path | None:
    """Returns the tmpfs folder of the open segment, or None if there is none."""
    return _read_path(folder / "hot")


def stream_folder_of(hot: Path) -> Path | None:
    """Returns the stream's folder to which a folder on tmpfs belongs."""
    return _read_path(hot / HOME_FILE)


def segment_path(folder: Path, offset: int) -> Path:
    return folder / f"{offset:020d}.seg"


def create_segment(path: Path) -> int:
    """Creates a segment and returns its descriptor, which appends.

    Raises:
        OSError: the file cannot be created.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return above_standard(os.open(path, flags, 0o600))
    except FileExistsError:  # the mirror's copy of a truncated partial frame; it contains no whole frame
        path.unlink()
        return above_standard(os.open(path, flags, 0o600))


def streams(run_folder: Path) -> list[Path]:
    """Lists the stream folders of a run's folder."""
    return sorted(path.parent for path in run_folder.glob("*/alive") if path.is_file() and not path.is_symlink())


def acknowledged(folder: Path) -> int:
    """Returns the offset up to which the collector has committed the stream; 0 if unreadable."""
    try:
        offset = int(contents(folder / "ack") or 0)
    except (OSError, ValueError):
        return 0
    return offset if 0 <= offset < OFFSET_LIMIT else 0


def acknowledge(folder: Path, offset: int) -> None:
    """Records the offset up to which the collector has committed the stream."""
    replace(folder / "ack", str(offset).encode())


def offered(folder: Path) -> int:
    """Returns the offset before which everything may have been sent; 0 for nothing.

    A collector cannot acknowledge more than this. After a crash of the host the file may be older than the last
    request, so it also contains a higher, reserved offset, which applies after a reboot.
    """
    try:
        exact, reserved, boot_id = contents(folder / OFFERED_FILE).decode().split()
        offset = int(exact if boot_id == _boot_id() else reserved)
    except (OSError, ValueError):
        return 0
    return offset if 0 <= offset < OFFSET_LIMIT else 0


def offer(folder: Path, offset: int) -> None:
    """Records that the stream is about to be sent up to this offset."""
    reserved = (offset // RESERVED_BYTES + 2) * RESERVED_BYTES
    replace(folder / OFFERED_FILE, f"{offset} {min(reserved, OFFSET_LIMIT - 1)} {_boot_id()}".encode())


def refusal(folder: Path) -> str:
    """Returns why the collector refuses the stream; empty if it does not."""
    try:
        return contents(folder / REFUSAL_FILE).decode(errors="replace")
    except OSError:
        return ""


def note_refusal(folder: Path, reason: str) -> None:
    """Records why the stream is not delivered, for readers of the journal; empty clears it."""
    if reason:
        replace(folder / REFUSAL_FILE, reason.encode())
    else:
        (folder / REFUSAL_FILE).unlink(missing_ok=True)


def replace(path: Path, data: bytes) -> None:
    """Replaces a whole file atomically: a reader gets the old or the new content."""
    draft = path.with_suffix(".tmp")
    with open_plain(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as file:
        file.write(data)
    draft.replace(path)


def open_plain(path: Path, flags: int = os.O_RDONLY) -> BinaryIO:
    """Opens a journal file without following links or waiting for a pipe.

    The folder may belong to another user while this process is root, so links are refused.

    Raises:
        OSError: the path is a link, or cannot be opened.
    """
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    return os.fdopen(file, "rb" if flags == os.O_RDONLY else "r+b" if flags & os.O_RDWR else "wb")


def contents(path: Path) -> bytes:
    """Returns the whole content of a journal file."""
    with open_plain(path) as file:
        return file.read()


def private_folder(path: Path) -> Path:
    """Creates a folder that only this user can enter; an existing folder is not changed.

    Raises:
        PermissionError: the path is a symlink, belongs to another user or can be written by others. Users who can
            replace the content could make this process read files of their choice.
    """
    try:
        path.mkdir(mode=0o700, parents=True)
    except FileExistsError:
        made = False
    else:
        made = True
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} is a symlink or belongs to another user; remove it or set AMMETER_DIR elsewhere")
    if made and mode != 0o700:
        path.chmod(0o700)
    elif mode & 0o022 and not mode & stat.S_ISVTX:  # with the sticky bit, others cannot replace our files
        raise PermissionError(
            f"{path} can be written by others (mode {mode:o}); chmod go-w it, or set AMMETER_DIR elsewhere"
        )
    return path


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def usage(folder: Path) -> int:
    """Returns the bytes of the segments in a folder."""
    return sum(size_of(path) for path in _list_segments(folder).values())


def _boot_id() -> str:
    """Returns the id of this boot of the machine, or "-" if unavailable."""
    try:
        return BOOT_ID.read_text().strip() or "-"
    except OSError:
        return "-"


def _read_path(path: Path) -> Path | None:
    """Returns the absolute path that a file contains."""
    try:
        text = contents(path).decode()
    except (OSError, ValueError):
        return None
    return Path(text) if text.startswith("/") and "\0" not in text else None


def _list_both(hot: Path, folder: Path) -> dict[int, Path]:
    """Lists the segments of a stream on disk and on tmpfs.

    Tmpfs is listed twice, because segments move to disk meanwhile. A segment in both places is the open one. Its path
    on tmpfs is returned: the copy on disk is slightly behind.
    """
    segments = {**_list_segments(hot), **_list_segments(folder)}
    return segments | _list_segments(hot)


def _list_segments(folder: Path) -> dict[int, Path]:
    """Lists regular files named by an offset.

    Other entries are ignored: a read from a pipe could block, and a link could lead to a foreign file.
    """
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if _is_segment(entry)]
    except OSError:
        return {}
    return {int(name[:-4]): folder / name for name in names}


def _is_segment(entry: os.DirEntry[str]) -> bool:
    stem, _, suffix = entry.name.rpartition(".")
    is_offset = stem.isascii() and stem.isdigit() and len(stem) == 20 and int(stem) < OFFSET_LIMIT
    return suffix == "seg" and is_offset and entry.is_file(follow_symlinks=False)
