"""Assigns checkpoints that were saved into a buffer to the files that are written from it.

Lightning, for example, saves into a buffer and writes the buffer through fsspec. The path is then the one that the same
thread opens next through fsspec, and the file is examined after the step.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import Any

import msgspec

from ammeter.probes.checkpoint.files import moved, size_and_exposure

MAX_BUFFER_STEPS = 64
"""Steps that a buffer of another thread may wait for its file."""

Data = dict[str, Any]
"""The data of a `checkpoint.saved` event."""


class _Buffer(msgspec.Struct):
    """A checkpoint saved into a buffer whose path is unknown yet.

    Attributes:
        data: the data of its event.
        steps: steps that it has waited for its file.
    """

    data: Data
    steps: int = 0


class UnwrittenCheckpoints:
    """Checkpoints whose file does not exist yet. The events of other threads are queued in `queue`.

    Files are examined after the step, because a transaction ends after the call that opened its file.
    """

    def __init__(self, queue: deque[tuple[str, Data]]) -> None:
        self._queue = queue
        self._buffers: dict[int, _Buffer] = {}
        self._files: deque[Data] = deque()
        self._written: deque[tuple[Data, int]] = deque()
        self._training_thread = threading.get_ident()

    def add_buffer(self, data: Data) -> None:
        """Stores a buffer of this thread. An earlier one that was never written has no path."""
        thread = threading.get_ident()
        self._give_up(thread)
        self._buffers[thread] = _Buffer(data)

    def add_file(self, data: Data) -> None:
        """Stores a checkpoint with a path, whose file does not exist yet."""
        self._files.append(data)

    def add_written(self, data: Data) -> None:
        """Stores a checkpoint whose file exists: the program may move it to its place within the step."""
        with suppress(OSError):
            self._written.append((data, os.stat(data["path"]).st_ino))

    def has_buffer(self) -> bool:
        return threading.get_ident() in self._buffers

    def opened(self, path: str) -> None:
        """Assigns the file that this thread opens for writing to its last buffer."""
        buffer = self._buffers.pop(threading.get_ident(), None)  # the training thread may have given it up meanwhile
        if buffer is None:
            return
        buffer.data["path"] = path
        self._files.append(buffer.data)
        if threading.get_ident() != self._training_thread:
            self._queue.append(("checkpoint.saved", buffer.data))

    def examine(self) -> None:
        """Examines written files and gives up buffers without a file.

        A buffer of the training thread is not written after its step; a buffer of another thread may take longer.
        """
        while self._files:
            data = self._files.popleft()
            data.update(size_and_exposure(data["path"]))
        while self._written:
            data, inode = self._written.popleft()
            data["path"] = moved(data["path"], inode)
        for thread, buffer in list(self._buffers.items()):
            buffer.steps += 1
            if thread == self._training_thread or buffer.steps > MAX_BUFFER_STEPS:
                self._give_up(thread)

    def close(self) -> None:
        """Examines the files for the last time and gives up all buffers."""
        self.examine()
        for thread in list(self._buffers):
            self._give_up(thread)

    def _give_up(self, thread: int) -> None:
        buffer = self._buffers.pop(thread, None)  # the other thread may have opened its file meanwhile
        if buffer is not None and thread != self._training_thread:
            self._queue.append(("checkpoint.saved", buffer.data))
