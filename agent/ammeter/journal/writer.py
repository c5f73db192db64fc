"""Writes a stream in the training process: whole frames per write(), and no OSError."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from pathlib import Path
from time import monotonic

from ammeter.journal.layout import HOME, acknowledged, private_folder, replace, segment_path, usage
from ammeter.journal.process_lock import above_standard, born_locked, identity, unlock
from ammeter.redaction import here
from ammeter.wire.codec import encode
from ammeter.wire.frames import Event, Frame, Hello, Lost, Steps

SEGMENT_BYTES = 4 * 2**20

CAP_BYTES = 512 * 2**20
"""Size limit of a stream's folder. Near the limit the writer keeps fewer steps; events are kept longest."""

_STRIDES = ((0.5, 1), (0.75, 10), (0.95, 100))
"""(share of the cap in use, n): below that share the writer keeps every n-th step. Above the last share it keeps events
only, and at the cap neither."""

_LOOK_AGAIN = 256
"""Number of excluded frames after which the writer checks again whether the folder has room."""

_STUCK_SECONDS = 10.0
"""How long another thread may have its turn. After that time the thread counts as interrupted while it took the turn,
so the turn will not come back."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Journal:
    """Writes frames of one stream. Methods do not raise OSError after construction.

    Frames that cannot be written are counted, and reported later in a Lost frame.
    """

    def __init__(
        self,
        folder: Path,
        *,
        hot: Path | None = None,
        hot_bytes: int = 0,
        segment_bytes: int = SEGMENT_BYTES,
        cap_bytes: int = CAP_BYTES,
    ) -> None:
        """Creates the folder (0700) and takes the lock. Raises OSError if either fails.

        hot: a folder on tmpfs for the open segment, used while this stream has less than hot_bytes there.
        """
        self.folder = private_folder(folder)
        self.offset = 0
        self._hot = hot if hot and hot_bytes > 0 else None
        self._hot_bytes = hot_bytes
        self._segment_bytes = min(segment_bytes, hot_bytes // 2) if self._hot else segment_bytes
        self._cap_bytes = cap_bytes
        self._hello: Hello | None = None
        self._waiting: deque[tuple[Frame, ...] | None] = deque()
        self._turn: deque[None] = deque([None])
        self._wrote = monotonic()
        self._file = -1
        self._identity = (-1, -1)
        self._path: Path | None = None
        self._room = 0
        self._stride = 1
        self._full = False
        self._passed_over = 0
        self._lost: dict[str, Lost] = {}
        if self._hot:
            self._settle_in(self._hot)
        self._alive = born_locked(self.folder / "alive")

    def _settle_in(self, hot: Path) -> None:
        """Writes into each folder the path of the other.

        A folder that cannot be written, for example because tmpfs is full, is not used.
        """
        try:
            private_folder(hot)
            replace(hot / HOME, os.fsencode(self.folder))
        except OSError:
            self._hot = None
        else:
            replace(self.folder / "hot", os.fsencode(hot))

    def hello(self, hello: Hello) -> None:
        """Writes the hello now and at the beginning of every later segment."""
        self._in_turn((hello,))

    def append(self, *frames: Frame) -> bool:
        """Writes frames, with one write() if they fit into a segment.

        With several threads, the first one writes the frames of all, and the others do not wait.

        Returns:
            False if a frame was lost; a Lost frame reports it as soon as possible.
        """
        return not frames or self._in_turn(frames)

    def _in_turn(self, frames: tuple[Frame, ...] | None) -> bool:
        """Serializes writers without a lock.

        Only one thread at a time can pop the only element of a deque.
        """
        waiting, written = self._waiting, True
        waiting.append(frames)
        while waiting:
            try:
                self._turn.pop()
            except IndexError:
                if monotonic() - self._wrote < _STUCK_SECONDS:
                    return True
            try:
                while waiting:
                    each, self._wrote = waiting.popleft(), monotonic()
                    done = self._next(each)
                    written = done if each is frames else written
            finally:
                if not self._turn:
                    self._turn.append(None)
        return written

    def _next(self, frames: tuple[Frame, ...] | None) -> bool:
        if self._alive < 0:
            return False
        if frames is None:
            self._close()
            return True
        written = True
        several: list[Frame] = []
        for frame in frames:
            if type(frame) is not Steps:
                frame = here.frame(frame)
            if isinstance(frame, Hello):
                written = self._append(several) and written
                several = []
                self._say(frame)
            elif self._stride == 1 or not self._passes_over(frame):
                several.append(frame)
            else:
                written = False
        return self._append(several) and written

    def _say(self, hello: Hello) -> None:
        self._hello = hello
        if self._file < 0:
            self._open_segment()
        else:
            self._write([hello])

    def _append(self, frames: list[Frame]) -> bool:
        written = True
        while frames:
            if self._room <= 0:
                self._open_segment()
            if self._lost and self._file >= 0 and not (self._full and isinstance(frames[0], Steps | Event)):
                self._tell_losses()
            done = self._write(frames) or (self._leave_hot() and self._write(frames))
            if not done:
                self._count("journal-unwritable", frames[0])
                done, written = 1, False
            frames = frames[done:]
        return written

    def leave_tmpfs(self) -> None:
        """Writes all later segments to the stream's folder, because no process would move them there."""
        if self._hot:
            self._hot = None
            self._close_segment()

    def acknowledged(self) -> int:
        """Returns the offset up to which the collector has committed this stream; 0 if unknown."""
        return acknowledged(self.folder)

    def close(self) -> None:
        """Closes the files and releases the lock. May be called twice."""
        self._in_turn(None)

    def _close(self) -> None:
        self._close_segment()
        unlock(self._alive)
        self._alive = -1

    def _write(self, frames: list[Frame]) -> int:
        """Writes as many frames as the open segment has room for, in one piece.

        Returns:
            The number of frames written. At 0 the segment is closed.
        """
        if self._file < 0:
            return 0
        if not self._is_ours():
            self._file, self._room = -1, 0
            return 0
        pieces, size = [], 0
        for frame in frames:
            pieces.append(encode(frame, self.offset + size))
            size += len(pieces[-1])
            if size >= self._room:
                break
        try:
            written = os.write(self._file, b"".join(pieces))
            if written == size:
                self.offset += written
                self._room -= written
                return len(pieces)
        except OSError:
            self._close_segment()
            return 0
        except BaseException:  # Ctrl-C, perhaps after the write and before it was counted
            with contextlib.suppress(OSError, ValueError):
                self.offset = int(self._path.stem if self._path else "") + os.fstat(self._file).st_size
            raise
        self._cut_back(written)
        return 0

    def _is_ours(self) -> bool:
        """Returns whether the descriptor still refers to the segment.

        A program that closes all its descriptors may get this number again for another file.
        """
        try:
            return identity(os.fstat(self._file)) == self._identity
        except OSError:
            return False

    def _cut_back(self, written: int) -> None:
        """Truncates the partial frame of a short write and closes the segment.

        If the truncation fails, the frame stays, is skipped, and readers treat it as torn.
        """
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        except OSError:
            self.offset += written
        self._close_segment()

    def _passes_over(self, frame: Frame) -> bool:
        """Returns whether the cap excludes this frame; checks now and then for free room."""
        if isinstance(frame, Steps):
            keeps = self._stride and frame.step % self._stride == 0
        else:
            keeps = not (self._full and isinstance(frame, Event))
        if keeps:
            return False
        self._count("journal-cap", frame)
        self._passed_over += 1
        if self._passed_over % _LOOK_AGAIN == 0:
            self._set_stride()
            if not self._full:
                self._tell_losses()
        return True

    def _set_stride(self) -> None:
        used = usage(self.folder)
        self._stride = next((stride for share, stride in _STRIDES if used < share * self._cap_bytes), 0)
        self._full = used >= self._cap_bytes

    def _open_segment(self) -> None:
        self._close_segment()
        self._set_stride()
        if self._hot is None or usage(self._hot) + self._segment_bytes > self._hot_bytes or not self._begin(self._hot):
            self._begin(self.folder)

    def _begin(self, place: Path) -> bool:
        """Opens a new segment in this folder and writes the hello. Returns whether both succeeded."""
        path = segment_path(place, self.offset)
        try:
            self._file = _create(path)
            self._identity = identity(os.fstat(self._file))
        except OSError:
            return False
        self._path, self._room = path, self._segment_bytes
        return self._hello is None or bool(self._write([self._hello]))

    def _leave_hot(self) -> bool:
        """Opens a segment on disk after a failed write on tmpfs.

        Returns whether one is open now.
        """
        return self._file < 0 and self._path is not None and self._path.parent == self._hot and self._begin(self.folder)

    def _close_segment(self) -> None:
        if self._file >= 0 and self._is_ours():
            with contextlib.suppress(OSError):
                os.close(self._file)
            if self._path and self._path.stem == f"{self.offset:020d}":
                # Nothing was written: the name must be free for the next attempt, here or in the other folder.
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
            if not self._write([lost]):
                self._lost[lost.reason] = lost


def _create(path: Path) -> int:
    try:
        return above_standard(os.open(path, _CREATE, 0o600))
    except FileExistsError:  # the mirror's copy of a truncated partial frame; it contains no whole frame
        path.unlink()
        return above_standard(os.open(path, _CREATE, 0o600))
