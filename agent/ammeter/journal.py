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

from ammeter.wire import HEADER_BYTES, Bye, Event, Frame, Hello, Lost, Steps, encode, offset_in, scan, seek

SEGMENT_BYTES = 4 * 2**20
CAP_BYTES = 512 * 2**20
"""A stream's folder holds at most this much; nearing it, the writer keeps fewer steps, and events to the last."""

_STRIDES = ((0.5, 1), (0.75, 10), (0.95, 100))
"""Share of the cap in use -> the writer keeps every n-th step. Past the last, events only."""

_LOOK_AGAIN = 256
"""Rows passed over before the writer looks whether the folder has room again."""

_TAIL_BYTES = 64 * 2**10
"""How much of a segment's end is read to see whether its last frame is a bye."""

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
        self._hot = private_folder(hot) if hot and hot_bytes > 0 else None
        self._hot_bytes = hot_bytes
        self._segment_bytes = min(segment_bytes, hot_bytes // 2) if self._hot else segment_bytes
        self._cap_bytes = cap_bytes
        self._hello: Hello | None = None
        self._file = -1
        self._path: Path | None = None
        self._room = 0
        self._stride = 1
        self._passed_over = 0
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
        if isinstance(frame, Steps) and self._passes_over(frame):
            return False
        if self._room <= 0:
            self._open_segment()
        if self._lost and self._file >= 0:
            self._tell_losses()
        if self._write(frame) or (self._leave_hot() and self._write(frame)):
            return True
        self._count("journal-unwritable", frame)
        return False

    def acknowledged(self) -> int:
        """The offset up to which the collector has committed this stream; 0 when none is known."""
        return acknowledged(self.folder)

    def close(self) -> None:
        """Closes the files and gives the lock back. Twice is fine."""
        if self._alive < 0:
            return
        self._close_segment()
        unlock(self._alive)
        self._alive = -1

    def _write(self, frame: Frame) -> bool:
        """Whether the frame stands in the open segment now; when it does not, the segment is closed."""
        if self._file < 0:
            return False
        data = encode(frame, self.offset)
        try:
            written = os.write(self._file, data)
        except OSError:
            self._close_segment()
            return False
        if written != len(data):
            self._cut_back(written)
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

    def _passes_over(self, row: Steps) -> bool:
        """Whether the cap makes the writer leave this row out; now and then it looks whether there is room again."""
        if self._stride == 1 or (self._stride and row.step % self._stride == 0):
            return False
        self._count("journal-cap", row)
        self._passed_over += 1
        if self._passed_over % _LOOK_AGAIN == 0:
            self._set_stride()
            self._tell_losses()
        return True

    def _set_stride(self) -> None:
        used = _usage(self.folder)
        self._stride = next((stride for share, stride in _STRIDES if used < share * self._cap_bytes), 0)

    def _open_segment(self) -> None:
        self._close_segment()
        self._set_stride()
        if self._hot is None or _usage(self._hot) + self._segment_bytes > self._hot_bytes or not self._begin(self._hot):
            self._begin(self.folder)

    def _begin(self, place: Path) -> bool:
        """Whether a new segment is open in this place, with its hello written."""
        path = segment_path(place, self.offset)
        try:
            self._file = os.open(path, _CREATE, 0o600)
        except OSError:
            return False
        self._path, self._room = path, self._segment_bytes
        return self._hello is None or self._write(self._hello)

    def _leave_hot(self) -> bool:
        """After a failed write on tmpfs: whether a segment is open on the disk instead."""
        return self._file < 0 and self._path is not None and self._path.parent == self._hot and self._begin(self.folder)

    def _close_segment(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            if self._path and self._path.stem == f"{self.offset:020d}":
                # Nothing was written: its name must be free for the next try, here or in the other place.
                with contextlib.suppress(OSError):
                    self._path.unlink()
        self._file, self._room = -1, 0

    def _count(self, reason: str, frame: Frame) -> None:
        before = self._lost.get(reason, Lost(reason))
        steps, events = before.steps + isinstance(frame, Steps), before.events + isinstance(frame, Event)
        if steps or events:
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
    if listed and listed[0][0] > expected:
        yield _hole("journal-deleted", expected, listed[0][0])
        expected = listed[0][0]
    for index, (start, path) in enumerate(listed):
        behind = listed[index + 1][0] if index + 1 < len(listed) else None
        if behind is not None and behind <= expected:
            continue
        if behind is None and start + _size(path) <= expected:
            return
        for entry in _entries(_load(path, folder, start, expected), expected):
            yield entry
            expected = entry.end
            if budget is not None:
                budget -= entry.end - entry.begin
                if budget <= 0:
                    return
        if behind is not None and expected < behind:
            yield _hole("torn", expected, behind)
            expected = behind


def end_of(folder: Path) -> int:
    """The logical offset behind the stream's last whole frame."""
    listed = segments(folder)
    end = listed[-1][0] if listed else 0
    for start, path in listed[-1:]:
        for _, size, offset, frame in scan(_load(path, folder, start)):
            end = _end(offset, size, frame)
    return end


def written(folder: Path) -> int:
    """The logical offset up to which something was written, a torn tail included: one look, nothing is read."""
    listed = segments(folder)
    return listed[-1][0] + _size(listed[-1][1]) if listed else 0


def schema_before(folder: Path, offset: int) -> Hello | None:
    """The hello in force at a logical offset: needed by who starts to read in the middle of a stream.

    At the very beginning, where none is in force yet, the first one.
    """
    listed = segments(folder)
    for start, path in reversed([each for each in listed if each[0] < offset]):
        found = [frame for at, frame in _hellos(path, folder, start) if at < offset]
        if found:
            return found[-1]
    for start, path in listed:
        for _, frame in _hellos(path, folder, start):
            return frame
    return None


def is_alive(folder: Path) -> bool:
    """Whether a process holds the stream's lock, this one included. Asks without taking it."""
    return is_locked(folder / "alive")


def is_locked(path: Path) -> bool:
    """Whether a process, this one included, holds the lock on a file; False when there is no such file."""
    try:
        if _identity(path.stat()) in _held:
            return True
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        answer = fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)
    finally:
        os.close(file)


def lock(path: Path) -> int | None:
    """Takes the lock on a file, which is made if need be: its descriptor, to be closed; None when another has it."""
    if is_locked(path):
        return None
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    _held.add(_identity(os.fstat(file)))
    return file


def unlock(file: int) -> None:
    """Gives a lock back."""
    _held.discard(_identity(os.fstat(file)))
    os.close(file)


def settle(folder: Path, now: int) -> bool:
    """Ends the stream of a process that died: cuts a torn tail off and appends bye{lost}, once.

    now: nanoseconds since the epoch, the time the bye carries. True when this call wrote it; False when the
    writer lives or has said goodbye itself.
    """
    file = lock(folder / "alive") if (folder / "alive").exists() else None
    if file is None:
        return False
    try:
        return _append_bye(folder, now)
    finally:
        unlock(file)


def ended(folder: Path) -> bool:
    """Whether the stream's last frame is a bye: nobody writes behind one."""
    for _, path in segments(folder)[-1:]:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read()
        for position, length, _, frame in scan(tail):
            if isinstance(frame, Bye) and position + length == len(tail):
                return True
    return False


def move(path: Path, folder: Path) -> None:
    """Brings a closed segment from tmpfs to the stream's folder. A reader finds it at one of the two places."""
    replace(folder / path.name, path.read_bytes())
    path.unlink()


def thin(path: Path, keep: int) -> None:
    """Rewrites a closed segment in place with every keep-th step only (0: none); all else stays where it was.

    What goes is told by a Lost frame that stands at the hole it leaves.
    """
    kept: list[bytes] = []
    gone: Lost | None = None
    data = path.read_bytes()
    for position, size, offset, frame in scan(data):
        lost = _thinned(frame, offset, size, keep)
        if lost and gone and gone.end == lost.begin:
            gone = Lost(gone.reason, gone.steps + lost.steps, 0, gone.begin, lost.end)
            continue
        kept.extend(_told(gone))
        gone = lost
        if lost is None:
            kept.append(data[position : position + size])
    kept.extend(_told(gone))
    replace(path, b"".join(kept))


def drop(path: Path, end: int) -> None:
    """Replaces a closed segment, which ends at the logical offset `end`, by one Lost frame that counts it."""
    steps = events = 0
    start = int(path.stem)
    for _, _, _, frame in scan(path.read_bytes()):
        steps += frame.steps if isinstance(frame, Lost) else isinstance(frame, Steps)
        events += frame.events if isinstance(frame, Lost) else isinstance(frame, Event)
    replace(path, encode(Lost("journal-cap", steps, events, start, end), start))


def segments(folder: Path) -> list[tuple[int, Path]]:
    """(logical start, path) of every segment of a stream in order, wherever it lies."""
    hot = hot_folder(folder)
    found = _listed(folder)
    if hot:
        # Looked at on both sides of the disk: the writer may go from one to the other and back, the mover to disk.
        found = {**_listed(hot), **_listed(folder)}
        found = {**_listed(hot), **found}
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
    replace(folder / "ack", str(offset).encode())


def replace(path: Path, data: bytes) -> None:
    """Writes a whole file in one go: a reader sees the old one or the new one."""
    draft = path.with_suffix(".tmp")
    draft.write_bytes(data)
    draft.replace(path)


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


def _listed(place: Path) -> dict[int, Path]:
    try:
        names = os.listdir(place)
    except OSError:
        return {}
    return {int(name[:-4]): place / name for name in names if name.endswith(".seg")}


def _load(path: Path, folder: Path, start: int, expected: int = 0) -> bytes:
    """A segment's bytes from the frame at the offset `expected` on if it lies where an untouched segment has it.

    Else all of them: the segment was thinned, or is torn there. Nothing for one that was deleted meanwhile.
    """
    for place in (path, folder / path.name):
        try:
            with open(place, "rb") as file:
                skip = max(0, expected - start)
                file.seek(skip)
                if skip and offset_in(file.read(HEADER_BYTES)) != expected:
                    skip = 0
                file.seek(skip)
                return file.read()
        except FileNotFoundError:
            continue
    return b""


def _entries(data: bytes, expected: int) -> Iterator[Entry]:
    for _, size, offset, frame in scan(data, seek(data, expected)):
        end = _end(offset, size, frame)
        if end <= expected:
            continue
        if offset > expected:
            yield _hole("torn", expected, offset)
        yield Entry(max(offset, expected), end, frame)
        expected = end


def _hellos(path: Path, folder: Path, start: int) -> Iterator[tuple[int, Hello]]:
    for _, _, offset, frame in scan(_load(path, folder, start)):
        if isinstance(frame, Hello):
            yield offset, frame


def _hole(reason: str, begin: int, end: int) -> Entry:
    return Entry(begin, end, Lost(reason, begin=begin, end=end))


def _end(offset: int, size: int, frame: Frame) -> int:
    return frame.end if isinstance(frame, Lost) and frame.end > frame.begin else offset + size


def _thinned(frame: Frame, offset: int, size: int, keep: int) -> Lost | None:
    """What thinning says instead of a frame; None for one that stays."""
    if isinstance(frame, Lost) and frame.reason == "journal-thinned":
        return frame
    if isinstance(frame, Steps) and (keep == 0 or frame.step % keep):
        return Lost("journal-thinned", 1, 0, offset, offset + size)
    return None


def _told(lost: Lost | None) -> list[bytes]:
    return [encode(lost, lost.begin)] if lost else []


def _append_bye(folder: Path, now: int) -> bool:
    listed = segments(folder)
    if not listed or ended(folder):
        return False
    start, path = listed[-1]
    whole, end, last = 0, start, None
    for position, size, offset, last in scan(path.read_bytes()):
        whole, end = position + size, _end(offset, size, last)
    if isinstance(last, Bye):
        os.truncate(path, whole)
        return False
    beyond = acknowledged(folder)
    if beyond > end:
        # The host went down and lost a tail that the collector has: the bye must stand behind it.
        whole, end, path = 0, beyond, segment_path(folder, beyond)
    with open(path, "r+b" if path.exists() else "xb") as file:
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


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _usage(place: Path) -> int:
    return sum(_size(path) for path in _listed(place).values())


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
