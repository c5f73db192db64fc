"""Writes a stream in the training process: whole frames per write(), and no OSError."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from ammeter.journal.layout import HOME_FILE, acknowledged, create_segment, private_folder, replace, segment_path, usage
from ammeter.journal.process_lock import create_locked, file_id, is_open_as, unlock
from ammeter.journal.size_cap import CAP_BYTES, SizeCap
from ammeter.journal.step_ring import create_ring
from ammeter.journal.turns import Turns
from ammeter.redaction import process_redactor
from ammeter.wire.codec import encode
from ammeter.wire.frames import Event, Frame, Hello, Lost, Steps

SEGMENT_BYTES = 4 * 2**20

_RECHECK_FRAMES = 256
"""Number of excluded frames after which the writer checks again whether the folder has room."""

_CLOSE_SECONDS = 2.0
"""Maximum time that close() waits for another thread, which writes the last frames of all and then closes. The end of
the process would stop a daemon thread in the middle of that."""


class Journal:
    """Writes frames of one stream. Methods do not raise OSError after construction.

    Frames that cannot be written are counted, and reported later in a Lost frame.

    Attributes:
        ring: the completed steps whose rows are still to come; None without tmpfs.
        ring_error: why the ring could not be created, if so.
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
        """Creates the folder (0700) and acquires the lock. Raises OSError if either fails.

        hot: a folder on tmpfs for the open segment, used while this stream has less than hot_bytes there.
        """
        self.folder = private_folder(folder)
        self.offset = 0
        self._hot = hot if hot and hot_bytes > 0 else None
        self._hot_bytes = hot_bytes
        self._segment_bytes = min(segment_bytes, hot_bytes // 2) if self._hot else segment_bytes
        self._cap = SizeCap(self.folder, cap_bytes)
        self._hello: Hello | None = None
        self._turns = Turns[tuple[Frame, ...] | None](self._write_call)
        self._file = -1
        self._file_id = (-1, -1)
        self._path: Path | None = None
        self._room_bytes = 0
        self._excluded_frames = 0
        self._lost: dict[str, Lost] = {}
        self._lock = create_locked(self.folder / "alive")
        if self._hot:
            self._link_folders(self._hot)
        self.ring, self.ring_error = create_ring(self._hot)

    def _link_folders(self, hot: Path) -> None:
        """Writes into each folder the path of the other.

        A folder that cannot be written, for example because tmpfs is full, is not used. The lock is acquired before:
        the shipper of another run removes a linked folder on tmpfs whose writer is not alive.
        """
        try:
            private_folder(hot)
            replace(hot / HOME_FILE, os.fsencode(self.folder))
        except OSError:
            self._hot = None
            return
        try:
            replace(self.folder / "hot", os.fsencode(hot))
        except OSError:
            unlock(self._lock)
            raise

    def hello(self, hello: Hello) -> None:
        """Writes the hello now and at the beginning of every later segment."""
        self._turns.take((hello,))

    def append(self, *frames: Frame) -> bool:
        """Writes frames, with one write() if they fit into a segment.

        With several threads, the first one writes the frames of all, and the others do not wait.

        Returns:
            False if a frame was lost; a Lost frame reports it as soon as possible.
        """
        return not frames or self._turns.take(frames)

    def _write_call(self, frames: tuple[Frame, ...] | None) -> bool:
        """Writes the frames of one call; None closes the journal."""
        if self._lock < 0:
            return False
        if frames is None:
            self._close()
            return True
        written = self._write_admitted(frames)
        if self.ring is not None:
            self.ring.mark_written(frames)
        return written

    def _write_admitted(self, frames: tuple[Frame, ...]) -> bool:
        """Writes the frames that the cap does not exclude."""
        written = True
        admitted: list[Frame] = []
        for frame in frames:
            if type(frame) is not Steps:
                frame = process_redactor.frame(frame)
            if isinstance(frame, Hello):
                written = self._write_all(admitted) and written
                admitted = []
                self._write_hello(frame)
            elif self._cap.stride == 1 or not self._excludes(frame):
                admitted.append(frame)
            else:
                written = False
        return self._write_all(admitted) and written

    def _write_hello(self, hello: Hello) -> None:
        self._hello = hello
        if self._file < 0:
            self._open_segment()
        else:
            self._write([hello])

    def _write_all(self, frames: list[Frame]) -> bool:
        written = True
        while frames:
            if self._room_bytes <= 0:
                self._open_segment()
            if self._lost and self._file >= 0 and not (self._cap.full and isinstance(frames[0], Steps | Event)):
                self._write_losses()
            done = self._write(frames) or (self._continue_on_disk() and self._write(frames))
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
        if self.ring is not None:
            self.ring.remove()

    def acknowledged(self) -> int:
        """Returns the offset up to which the collector has committed this stream; 0 if unknown."""
        return acknowledged(self.folder)

    def close(self) -> None:
        """Closes the files and releases the lock, once all frames are written. May be called twice.

        Called from within a write, for example by a signal handler, it leaves the rest to that write.
        """
        self._turns.take(None)
        self._turns.wait_until(lambda: self._lock < 0, _CLOSE_SECONDS)

    def _close(self) -> None:
        self._close_segment()
        if self.ring is not None:
            self.ring.remove()
        unlock(self._lock)
        self._lock = -1

    def _write(self, frames: list[Frame]) -> int:
        """Writes as many frames as the open segment has room for, in one piece.

        Returns:
            The number of frames written. At 0 the segment is closed.
        """
        if self._file < 0:
            return 0
        if not is_open_as(self._file, self._file_id):
            self._file, self._room_bytes = -1, 0
            return 0
        pieces, size = [], 0
        for frame in frames:
            pieces.append(encode(frame, self.offset + size))
            size += len(pieces[-1])
            if size >= self._room_bytes:
                break
        try:
            written = os.write(self._file, b"".join(pieces))
            if written == size:
                self.offset += written
                self._room_bytes -= written
                return len(pieces)
        except OSError:
            self._close_segment()
            return 0
        except BaseException:  # Ctrl-C, perhaps after the write and before it was counted
            with contextlib.suppress(OSError, ValueError):
                self.offset = int(self._path.stem if self._path else "") + os.fstat(self._file).st_size
            raise
        self._truncate(written)
        return 0

    def _truncate(self, written: int) -> None:
        """Truncates the partial frame of a short write and closes the segment.

        If the truncation fails, the frame stays, is skipped, and readers treat it as torn.
        """
        try:
            os.ftruncate(self._file, os.fstat(self._file).st_size - written)
        except OSError:
            self.offset += written
        self._close_segment()

    def _excludes(self, frame: Frame) -> bool:
        """Returns whether the cap excludes this frame; checks now and then for free room."""
        if self._cap.admits(frame):
            return False
        self._count("journal-cap", frame)
        self._excluded_frames += 1
        if self._excluded_frames % _RECHECK_FRAMES == 0:
            self._cap.update()
            if not self._cap.full:
                self._write_losses()
        return True

    def _open_segment(self) -> None:
        self._close_segment()
        self._cap.update()
        hot_has_room = self._hot is not None and usage(self._hot) + self._segment_bytes <= self._hot_bytes
        if not (self._hot and hot_has_room and self._open_segment_in(self._hot)):
            self._open_segment_in(self.folder)

    def _open_segment_in(self, folder: Path) -> bool:
        """Opens a new segment in this folder and writes the hello. Returns whether both succeeded."""
        path = segment_path(folder, self.offset)
        try:
            self._file = create_segment(path)
            self._file_id = file_id(os.fstat(self._file))
        except OSError:
            return False
        self._path, self._room_bytes = path, self._segment_bytes
        return self._hello is None or bool(self._write([self._hello]))

    def _continue_on_disk(self) -> bool:
        """Opens a segment on disk after a failed write on tmpfs; returns whether one is open."""
        failed_on_tmpfs = self._file < 0 and self._path is not None and self._path.parent == self._hot
        return failed_on_tmpfs and self._open_segment_in(self.folder)

    def _close_segment(self) -> None:
        if self._file >= 0 and is_open_as(self._file, self._file_id):
            with contextlib.suppress(OSError):
                os.close(self._file)
            if self._path and self._path.stem == f"{self.offset:020d}":
                # Nothing was written: the name must be free for the next attempt, here or in the other folder.
                with contextlib.suppress(OSError):
                    self._path.unlink()
        self._file, self._room_bytes = -1, 0

    def _count(self, reason: str, frame: Frame) -> None:
        before = self._lost.get(reason, Lost(reason))
        steps, events = before.steps + isinstance(frame, Steps), before.events + isinstance(frame, Event)
        if steps or events:
            self._lost[reason] = Lost(reason, steps, events)

    def _write_losses(self) -> None:
        losses, self._lost = list(self._lost.values()), {}
        for lost in losses:
            if not self._write([lost]):
                self._lost[lost.reason] = lost
