"""What happens to closed segments: they leave tmpfs, and when a stream's folder nears its cap some of them go.

In this order: what the collector has, oldest first; then rows are thinned, then all rows; events go last. The
shares lie below those at which the writer itself begins to leave rows out wherever deleting is enough.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

from ammeter import journal

DELETE_SHARE = 0.45
THIN_SHARES = ((10, 0.5), (0, 0.75))
"""Every n-th row is kept of a segment once more than this share of the cap is in use."""
DROP_SHARE = 0.95

_DROPPED = -1


class Keeper:
    """One stream's segments. It remembers which of them it has thinned already."""

    def __init__(self, folder: Path, cap_bytes: int = journal.CAP_BYTES) -> None:
        self.folder = folder
        self._cap_bytes = cap_bytes
        self._kept: dict[int, int] = {}

    def tidy(self, delivered: int, touched: int) -> None:
        """Moves closed segments off tmpfs and keeps the folder under its cap. Raises OSError when the disk refuses.

        delivered: the offset the collector has acknowledged. touched: an offset before which the stream was read
        or sent already; thinning there would count frames as lost that may have arrived.
        """
        listed = journal.segments(self.folder)
        for _, path in listed[:-1]:
            if path.parent != self.folder:
                journal.move(path, self.folder)
        closed = [(start, after, self.folder / path.name) for (start, path), (after, _) in itertools.pairwise(listed)]
        used = sum(_size(self.folder / path.name) for _, path in listed)
        used = self._delete(closed, used, delivered)
        for keep, share in THIN_SHARES:
            used = self._thin(closed, used, touched, keep, share)
        self._drop(closed, used, touched)

    def finish(self) -> None:
        """After the stream's end: nothing of it stays on tmpfs."""
        hot = journal.hot_folder(self.folder)
        if hot is None:
            return
        for _, path in journal.segments(self.folder):
            if path.parent == hot:
                journal.move(path, self.folder)
        with contextlib.suppress(OSError):
            for place in (*hot.glob("*.seg"), hot / journal.HOME):
                place.unlink(missing_ok=True)
            hot.rmdir()
            (self.folder / "hot").unlink()
            hot.parent.rmdir()

    def _delete(self, closed: list[tuple[int, int, Path]], used: int, delivered: int) -> int:
        for start, after, path in closed:
            if used <= DELETE_SHARE * self._cap_bytes or after > delivered:
                break
            used -= _size(path)
            path.unlink(missing_ok=True)
            self._kept.pop(start, None)
        return used

    def _thin(self, closed: list[tuple[int, int, Path]], used: int, touched: int, keep: int, share: float) -> int:
        for start, _, path in closed:
            if used <= share * self._cap_bytes:
                break
            if start < touched or self._kept.get(start, 1_000) <= keep or not path.exists():
                continue
            before = _size(path)
            journal.thin(path, keep)
            self._kept[start] = keep
            used += _size(path) - before
        return used

    def _drop(self, closed: list[tuple[int, int, Path]], used: int, touched: int) -> None:
        for start, after, path in closed:
            if used <= DROP_SHARE * self._cap_bytes:
                break
            if start < touched or self._kept.get(start) == _DROPPED or not path.exists():
                continue
            before = _size(path)
            journal.drop(path, after)
            self._kept[start] = _DROPPED
            used += _size(path) - before


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
