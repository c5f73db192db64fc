"""The size limit of a stream's folder: near it, the writer records fewer frames."""

from __future__ import annotations

from pathlib import Path

from ammeter.journal.layout import usage
from ammeter.wire.frames import Event, Frame, Steps

CAP_BYTES = 512 * 2**20
"""Size limit of a stream's folder. Near the limit the writer records fewer steps; events are recorded longest."""

_STRIDES = ((0.5, 1), (0.75, 10), (0.95, 100))
"""(share of the cap in use, n): below that share the writer records every n-th step. Above the last share it records
events only, and at the cap neither."""


class SizeCap:
    """Decides which frames a writer still records.

    stride: every stride-th step is recorded; 0 records none. full: events are not recorded either.
    """

    def __init__(self, folder: Path, cap_bytes: int) -> None:
        self.stride = 1
        self.full = False
        self._folder = folder
        self._cap_bytes = cap_bytes

    def update(self) -> None:
        """Adapts stride and full to the folder's present size."""
        used = usage(self._folder)
        self.stride = next((stride for share, stride in _STRIDES if used < share * self._cap_bytes), 0)
        self.full = used >= self._cap_bytes

    def admits(self, frame: Frame) -> bool:
        """Returns whether a frame is recorded."""
        if isinstance(frame, Steps):
            return self.stride > 0 and frame.step % self.stride == 0
        return not (self.full and isinstance(frame, Event))
