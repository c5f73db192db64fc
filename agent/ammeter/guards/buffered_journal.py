"""Passes the frames of a run's journal to the guards as they are written."""

from __future__ import annotations

from typing import Any

from ammeter.journal import Journal
from ammeter.wire.frames import Frame, Hello


class BufferedJournal(Journal):
    """A journal that also keeps written frames until take_frames(), so guards judge the report's data."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._frames: list[Frame] = []
        super().__init__(*args, **options)

    def hello(self, hello: Hello) -> None:
        super().hello(hello)
        self._frames.append(hello)

    def append(self, *frames: Frame) -> bool:
        self._frames.extend(frames)
        return super().append(*frames)

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    def take_frames(self) -> list[Frame]:
        """Returns the frames written since the last call."""
        frames, self._frames = self._frames, []
        return frames
