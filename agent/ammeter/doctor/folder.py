"""Checks that journals can be written, locked and kept, and how fast."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ammeter import journal
from ammeter.doctor.line import Line, fail, ok, warn

LITTLE_BYTES = 2**30
"""A stream may use half of it before rows are thinned."""

SLOW_SECONDS = 0.005
"""A write into the page cache takes microseconds.

A network folder can take as long as a step.
"""

HOT = Path("/dev/shm")  # noqa: S108 - only its free space is read
HOT_FREE_BYTES = 256 * 2**20


def lines(dir: Path) -> Iterator[Line]:
    """Checks the folder, and tmpfs, which contains the open segment."""
    hot = _hot()
    try:
        journal.private_folder(dir)
        with tempfile.TemporaryDirectory(dir=dir, prefix="doctor-") as place:
            slowest = _slowest_write(Path(place))
            seen = _seen_from_outside(Path(place))
    except OSError as error:
        yield fail(
            "journal", f"{dir} cannot be used ({error.strerror or error})", "set AMMETER_DIR to a folder of yours"
        )
        return
    free = shutil.disk_usage(dir).free
    if seen.returncode != 0:
        last = (seen.stderr.strip().splitlines() or [f"exit code {seen.returncode}"])[-1]
        yield fail("processes", f"a Python that is started here fails: {last}", "the shipper is one; make them start")
    if seen.stdout.strip() == "False":
        yield fail(
            "journal", f"{dir} has no record locks: nobody can see that a run died", "set AMMETER_DIR to a local disk"
        )
    elif free < LITTLE_BYTES:
        yield warn("journal", f"{dir}, {_size(free)} free", "make room, or set AMMETER_DIR elsewhere: rows get thinned")
    elif slowest > SLOW_SECONDS and hot.level != "ok":
        yield warn("journal", f"{dir}, a write takes {1000 * slowest:.1f} ms", "set AMMETER_DIR to a local disk")
    else:
        yield ok("journal", f"{dir}, private, {_size(free)} free, a write takes {1e6 * slowest:.0f} us at most")
    yield hot


def kept_back(dir: Path) -> Iterator[Line]:
    """Reports runs in the folder that the collector refuses, with the newest of them."""
    noted = sorted(dir.glob(f"*/*/{journal.REFUSED}"), key=_changed)
    if noted:
        more = f", and {len(noted) - 1} more" if len(noted) > 1 else ""
        why, _, remedy = journal.refusal(noted[-1].parent).partition("; data is kept, ")
        yield warn("delivery", f"{noted[-1].parent.parent}: {why}{more}", remedy or "read shipper.log there")


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # delivered just now
        return 0.0


def _slowest_write(place: Path) -> float:
    taken = []
    with (place / "written").open("wb", buffering=0) as file:
        for _ in range(50):
            began = time.perf_counter()
            file.write(bytes(3000))
            taken.append(time.perf_counter() - began)
    return sorted(taken)[-2]


def _seen_from_outside(place: Path) -> subprocess.CompletedProcess[str]:
    """Starts a process that reads a lock which this process owns.

    The start itself is a check too.
    """
    held = journal.lock(place / "lock")
    look = "import sys, pathlib, ammeter.journal as j; print(j.is_locked(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", look, str(place / "lock")]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        if held is not None:
            journal.unlock(held)


def _hot() -> Line:
    try:
        free = os.statvfs(HOT)
    except OSError:
        return warn("tmpfs", f"{HOT} is not there", "mount it: a write may wait for a checkpoint's pages otherwise")
    size = free.f_bavail * free.f_frsize
    if size < HOT_FREE_BYTES or not os.access(HOT, os.W_OK):
        remedy = "give it 256 MiB (docker run --shm-size): a write may wait for a checkpoint's pages otherwise"
        return warn("tmpfs", f"{HOT} has {_size(size)} free", remedy)
    return ok("tmpfs", f"{HOT}, {_size(size)} free; open segments lie there")


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
