"""The append-only record of a stream: its folder, its writer, its reader, and its end.

    <dir>/<run>/<stream>/alive                    the writer's lock: held while the process lives
                        /<offset>.seg             frames; the name is the logical offset the segment starts at
                        /hot                      where the open segment lies, if not here (a path on tmpfs)
                        /ack                      the offset the collector has acknowledged, as text

Only the writer creates segments; only the shipper moves, thins or deletes closed ones. Logical offsets never
change: what is removed leaves a hole that the next frame's header makes visible.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ammeter.wire import MAGIC, Bye, Event, Frame, Hello, Lost, Steps, encode, scan

SEGMENT_BYTES = 4 * 2**20
CAP_BYTES = 512 * 2**20
"""A stream's folder holds at most this much; nearing it, the writer keeps fewer steps, and events to the last."""

_STRIDES = ((0.5, 1), (0.75, 10), (0.95, 100))
"""Share of the cap in use -> the writer keeps every n-th step. Past the last, events only."""

_held: set[tuple[int, int]] = set()
"""(device, inode) of the locks this process holds: opening and closing such a file would drop its lock."""


class Journal:
    """The writing end. Its methods do not raise OSError: what cannot be written is counted and told later."""

    def __init__(
        self,
        folder: Path,
        *,
        hot: Path | None = None,
        hot_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        cap_bytes: int = CAP_BYTES,
    ) -> None:
        """Makes the folder (0700) and takes the lock. Raises OSError when either cannot be done.

        hot: a folder on tmpfs for the open segment, used while this stream has less than hot_bytes there.
        """
        self.folder = private_folder(folder)
        self.offset = 0
        self._hot = private_folder(hot) if hot else None
        self._hot_bytes = hot_bytes
        self._segment_bytes = min(segment_bytes, hot_bytes // 2) if hot else segment_bytes
        self._cap_bytes = cap_bytes
        self._hello: Hello | None = None
        self._file = -1
        self._room = 0
        self._stride = 1
        self._lost: dict[str, Lost] = {}
        if self._hot:
            (self.folder / "hot").write_text(str(self._hot))
        self._alive = _born_locked(self.folder / "alive")

    def hello(self, hello: Hello) -> None:
        """Says who writes and what the columns are, now and at the head of every later segment."""
        self._hello = hello
        if self._file < 0:
            self._open_segment()
        else:
            self._write(hello)

    def append(self, frame: Event | Lost | Bye | Steps) -> bool:
        """Writes a frame with one write(). False when it was lost; the loss is told as soon as that is possible."""
        if isinstance(frame, Steps) and self._stride != 1 and (self._stride == 0 or frame.step % self._stride):
            self._count("journal-cap", frame)
            return False
        if self._room <= 0:
            self._open_segment()
        if self._lost and self._file >= 0:
            self._tell_losses()
        return self._write(frame)

    def acknowledged(self) -> int:
        """The offset up to which the collector has committed this stream; 0 when none is known."""
        return acknowledged(self.folder)

    def close(self) -> None:
        """Closes the files and gives the lock back. Twice is fine."""
        if self._alive < 0:
            return
        self._close_segment()
        _held.discard(_identity(os.fstat(self._alive)))
        os.close(self._alive)
        self._alive = -1

    def _write(self, frame: Frame) -> bool:
        data = encode(frame, self.offset)
        if self._file < 0:
            self._count("journal-unwritable", frame)
            return False
        try:
            written = os.write(self._file, data)
        except OSError:
            self._count("journal-unwritable", frame)
            self._close_segment()
            return False
        if written != len(data):
            self._cut_back(written)
            self._count("journal-unwritable", frame)
            return False
        self.offset += written
        self._room -= written
        return True

    def _cut_back(self, written: int) -> None:
        """A short write leaves half a frame: take it back, or leave it to the reader and go on behind it."""
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        except OSError:
            self.offset += written
        self._close_segment()

    def _open_segment(self) -> None:
        self._close_segment()
        used, hot_used = _usage(self.folder), _usage(self._hot) if self._hot else 0
        self._stride = next((stride for share, stride in _STRIDES if used < share * self._cap_bytes), 0)
        home = self._hot if self._hot and hot_used + self._segment_bytes <= self._hot_bytes else self.folder
        for place in dict.fromkeys((home, self.folder)):
            try:
                self._file = os.open(segment_path(place, self.offset), _CREATE, 0o600)
                break
            except OSError:
                continue
        self._room = self._segment_bytes if self._file >= 0 else 0
        if self._hello and self._file >= 0:
            self._write(self._hello)

    def _close_segment(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
        self._file, self._room = -1, 0

    def _count(self, reason: str, frame: Frame) -> None:
        before = self._lost.get(reason, Lost(reason))
        steps, events = before.steps + isinstance(frame, Steps), before.events + isinstance(frame, Event)
        self._lost[reason] = Lost(reason, steps, events)

    def _tell_losses(self) -> None:
        losses, self._lost = list(self._lost.values()), {}
        for lost in losses:
            if not self._write(lost):
                self._lost[lost.reason] = lost


@dataclass(frozen=True)
class Entry:
    """One frame where it stands: logical offsets [begin, end). A hole in the journal is an Entry with a Lost."""

    begin: int
    end: int
    frame: Frame


def read(folder: Path, offset: int = 0, limit_bytes: int | None = None) -> Iterator[Entry]:
    """Yields what a stream's folder holds from a logical offset on, holes as Lost entries, until its present end.

    Stops after about limit_bytes. Safe while the stream is written and while closed segments are moved.
    """
    expected, budget = offset, limit_bytes
    listed = segments(folder)
    for index, (start, path) in enumerate(listed):
        behind = listed[index + 1][0] if index + 1 < len(listed) else None
        if behind is not None and behind <= expected:
            continue
        for entry in _entries(_load(path, max(0, expected - start), closed=behind is not None), expected):
            yield entry
            expected = entry.end
            if budget is not None:
                budget -= entry.end - entry.begin
                if budget <= 0:
                    return
        if behind is not None and expected < behind:
            yield _hole(expected, behind)
            expected = behind


def end_of(folder: Path) -> int:
    """The logical offset behind the stream's last whole frame."""
    listed = segments(folder)
    end = listed[-1][0] if listed else 0
    for _, path in listed[-1:]:
        for _, size, offset, frame in scan(_load(path)):
            end = _end(offset, size, frame)
    return end


def schema_before(folder: Path, offset: int) -> Hello | None:
    """The hello in force at a logical offset: needed by who starts to read in the middle of a stream."""
    found: Hello | None = None
    for start, path in segments(folder):
        if start >= offset and found is not None:
            break
        for _, _, at, frame in scan(_load(path)):
            if at >= offset and found is not None:
                break
            if isinstance(frame, Hello):
                found = frame
    return found


def is_alive(folder: Path) -> bool:
    """Whether a process holds the stream's lock, this one included. Asks without taking it."""
    try:
        if _identity((folder / "alive").stat()) in _held:
            return True
        file = os.open(folder / "alive", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)


def settle(folder: Path, now: int) -> bool:
    """Ends the stream of a process that died: cuts a torn tail off and appends bye{lost}, once.

    now: nanoseconds since the epoch, the time the bye carries. True when this call wrote it; False when the
    writer lives or has said goodbye itself.
    """
    if not (folder / "alive").exists() or is_alive(folder):
        return False
    file = os.open(folder / "alive", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _append_bye(folder, now)
    except (BlockingIOError, PermissionError):
        return False
    finally:
        os.close(file)


def move(path: Path, folder: Path) -> None:
    """Brings a closed segment from tmpfs to the stream's folder. A reader finds it at one of the two places."""
    _replace(folder / path.name, path.read_bytes())
    path.unlink()


def thin(path: Path, keep: int) -> None:
    """Rewrites a closed segment in place with every keep-th step only (0: none); all else stays where it was.

    What goes is told by a Lost frame that stands at the hole it leaves.
    """
    data = _load(path)
    kept: list[bytes] = []
    run: list[tuple[int, int]] = []
    for position, size, offset, frame in scan(data):
        if isinstance(frame, Steps) and (keep == 0 or frame.step % keep):
            run.append((offset, offset + size))
            continue
        kept.extend(_told(run))
        run = []
        kept.append(bytes(data[position : position + size]))
    kept.extend(_told(run))
    _replace(path, b"".join(kept))


def drop(path: Path, end: int) -> None:
    """Replaces a closed segment, which ends at the logical offset `end`, by one Lost frame that counts it."""
    steps = events = 0
    start = int(path.stem)
    for _, _, _, frame in scan(_load(path)):
        steps += frame.steps if isinstance(frame, Lost) else isinstance(frame, Steps)
        events += frame.events if isinstance(frame, Lost) else isinstance(frame, Event)
    _replace(path, encode(Lost("journal-cap", steps, events, start, end), start))


def segments(folder: Path) -> list[tuple[int, Path]]:
    """(logical start, path) of every segment of a stream in order, wherever it lies."""
    found: dict[int, Path] = {}
    for place in (hot_folder(folder), folder):
        if place is not None and place.is_dir():
            found.update((int(path.stem), path) for path in place.glob("*.seg"))
    return sorted(found.items())


def hot_folder(folder: Path) -> Path | None:
    """Where the open segment of a stream lies when it is not in its folder."""
    try:
        return Path((folder / "hot").read_text())
    except FileNotFoundError:
        return None


def segment_path(place: Path, offset: int) -> Path:
    return place / f"{offset:020d}.seg"


def acknowledged(folder: Path) -> int:
    try:
        return int((folder / "ack").read_text() or 0)
    except (FileNotFoundError, ValueError):
        return 0


def acknowledge(folder: Path, offset: int) -> None:
    """Notes the offset up to which the collector has committed the stream."""
    _replace(folder / "ack", str(offset).encode())


def streams(run_folder: Path) -> list[Path]:
    """The stream folders of a run's folder."""
    return sorted(path.parent for path in run_folder.glob("*/alive"))


def private_folder(path: Path) -> Path:
    """Makes a folder that only this user can enter. Raises PermissionError for a symlink or another's folder."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(f"{path} is a symlink or belongs to another user; remove it or set AMMETER_DIR elsewhere")
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
    return path


_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


_FLOCK = "hhqqi"
"""struct flock of 64-bit Linux: type, whence, start, len, pid."""


def _born_locked(path: Path) -> int:
    """The descriptor of a lock file that nobody ever sees unlocked: locked under another name, then renamed."""
    draft = path.with_suffix(f".{os.getpid()}")
    file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    draft.rename(path)
    _held.add(_identity(os.fstat(file)))
    return file


def _load(path: Path, skip: int = 0, *, closed: bool = True) -> bytes:
    """A segment's bytes from `skip` on if a frame begins there, else all of them (it was thinned or is torn)."""
    try:
        with open(path, "rb") as file:
            if skip and not closed and skip >= os.fstat(file.fileno()).st_size:
                return b""
            file.seek(skip)
            if skip and file.read(len(MAGIC)) != MAGIC:
                skip = 0
            file.seek(skip)
            return file.read()
    except FileNotFoundError:
        return _moved(path)


def _moved(path: Path) -> bytes:
    """The bytes of a segment that was moved off tmpfs while it was being looked for; empty when it is gone."""
    elsewhere = [found for _, found in segments(path.parent) if found.name == path.name]
    return elsewhere[0].read_bytes() if elsewhere else b""


def _entries(data: bytes, expected: int) -> Iterator[Entry]:
    for _, size, offset, frame in scan(data):
        end = _end(offset, size, frame)
        if end <= expected:
            continue
        if offset > expected:
            yield _hole(expected, offset)
        yield Entry(max(offset, expected), end, frame)
        expected = end


def _hole(begin: int, end: int) -> Entry:
    return Entry(begin, end, Lost("torn", begin=begin, end=end))


def _end(offset: int, size: int, frame: Frame) -> int:
    return frame.end if isinstance(frame, Lost) and frame.end > frame.begin else offset + size


def _told(run: list[tuple[int, int]]) -> list[bytes]:
    if not run:
        return []
    return [encode(Lost("journal-thinned", len(run), 0, run[0][0], run[-1][1]), run[0][0])]


def _append_bye(folder: Path, now: int) -> bool:
    listed = segments(folder)
    if not listed:
        return False
    start, path = listed[-1]
    whole, end, last = 0, start, None
    for position, size, offset, last in scan(path.read_bytes()):
        whole, end = position + size, _end(offset, size, last)
    if isinstance(last, Bye):
        return False
    with open(path, "r+b") as file:
        file.truncate(whole)
        file.seek(whole)
        file.write(encode(Bye("lost", _last_step(listed), now), end))
        file.flush()
        os.fsync(file.fileno())
    return True


def _last_step(listed: list[tuple[int, Path]]) -> int:
    for _, path in reversed(listed):
        steps = [frame.step for _, _, _, frame in scan(path.read_bytes()) if isinstance(frame, Steps)]
        if steps:
            return steps[-1]
    return -1


def _replace(path: Path, data: bytes) -> None:
    draft = path.with_suffix(".tmp")
    draft.write_bytes(data)
    draft.replace(path)


def _usage(folder: Path | None) -> int:
    try:
        return sum(entry.stat().st_size for entry in os.scandir(folder) if entry.name.endswith(".seg"))
    except OSError:
        return 0


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
