"""Moves closed segments off tmpfs and keeps a stream's folder below its size limit.

Near the limit, acknowledged segments are deleted first, oldest first; then rows are thinned, then all rows removed;
events are dropped last. Deleting starts at a lower share than that at which the writer starts to omit rows, so that no
row is omitted while deleting is enough.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

from ammeter import journal

DELETE_SHARE = 0.45
THIN_SHARES = ((10, 0.5), (0, 0.75))
"""(n, share): above this share of the cap, segments keep every n-th row; 0 keeps none."""
DROP_SHARE = 0.95

_DROPPED = -1


class SegmentCleaner:
    """Manages the segments of one stream, and records which of them it has thinned."""

    def __init__(self, folder: Path, cap_bytes: int = journal.CAP_BYTES) -> None:
        self.folder = folder
        self._cap_bytes = cap_bytes
        self._strides: dict[int, int] = {}

    def clean(self, delivered: int, touched: int) -> None:
        """Moves closed segments off tmpfs and keeps the folder below its cap.

        Args:
            delivered: the offset that the collector has acknowledged.
            touched: the offset before which the stream was already read or sent. Segments before it are not thinned or
                dropped: frames that may have arrived would be counted as lost.

        Raises:
            OSError: the disk cannot be written.
        """
        listed = journal.segments(self.folder)
        for _, path in listed[:-1]:
            if path.parent != self.folder:
                journal.move(path, self.folder)
        closed = [(start, after, self.folder / path.name) for (start, path), (after, _) in itertools.pairwise(listed)]
        used = sum(_size(self.folder / path.name) for _, path in listed)
        used = self._delete(closed, used, delivered)
        for stride, share in THIN_SHARES:
            used = self._thin(closed, used, touched, stride, share)
        self._drop(closed, used, touched)

    def finish(self) -> None:
        """Moves everything off tmpfs after the end of the stream, first the steps that its writer completed last."""
        hot = journal.hot_folder(self.folder)
        if hot is None:
            return
        recovered = journal.recover_steps(self.folder)
        for _, path in journal.segments(self.folder):
            if path.parent == hot:
                journal.move(path, self.folder)
        if not recovered:  # another process is about to end the stream
            return
        with contextlib.suppress(OSError):
            journal.remove_ring(self.folder)
            for path in (*hot.glob("*.seg"), hot / journal.HOME_FILE):
                path.unlink(missing_ok=True)
            hot.rmdir()
            (self.folder / "hot").unlink()
            hot.parent.rmdir()

    def _delete(self, closed: list[tuple[int, int, Path]], used: int, delivered: int) -> int:
        for start, after, path in closed:
            if used <= DELETE_SHARE * self._cap_bytes or after > delivered:
                break
            used -= _size(path)
            path.unlink(missing_ok=True)
            self._strides.pop(start, None)
        return used

    def _thin(self, closed: list[tuple[int, int, Path]], used: int, touched: int, stride: int, share: float) -> int:
        for start, _, path in closed:
            if used <= share * self._cap_bytes:
                break
            if start < touched or self._strides.get(start, 1_000) <= stride or not path.exists():
                continue
            before = _size(path)
            journal.thin(path, stride)
            self._strides[start] = stride
            used += _size(path) - before
        return used

    def _drop(self, closed: list[tuple[int, int, Path]], used: int, touched: int) -> None:
        for start, after, path in closed:
            if used <= DROP_SHARE * self._cap_bytes:
                break
            if start < touched or self._strides.get(start) == _DROPPED or not path.exists():
                continue
            before = _size(path)
            journal.drop(path, after)
            self._strides[start] = _DROPPED
            used += _size(path) - before


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
