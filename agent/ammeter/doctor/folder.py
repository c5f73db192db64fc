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
from ammeter.shipper.answers import DATA_STAYS

MIN_FREE_BYTES = 2**30
"""A stream may use half of it before rows are thinned."""

SLOW_SECONDS = 0.005
"""A write into the page cache takes microseconds.

A network folder can take as long as a step.
"""

HOT = Path("/dev/shm")  # noqa: S108 - only its free space is read
HOT_MIN_FREE_BYTES = 256 * 2**20

TEST_WRITES = 50
TEST_WRITE_BYTES = 3000


def lines(dir: Path) -> Iterator[Line]:
    """Checks the folder, and tmpfs, which contains the open segment."""
    hot = _hot()
    try:
        journal.private_folder(dir)
        with tempfile.TemporaryDirectory(dir=dir, prefix="doctor-") as folder:
            slowest_seconds = _slowest_write(Path(folder))
            lock_check = _check_lock(Path(folder))
    except OSError as error:
        text = f"{dir} cannot be used ({error.strerror or error})"
        yield fail("journal", text, "set AMMETER_DIR to a folder that belongs to you")
        return
    if lock_check.returncode != 0:
        yield _failed_process(lock_check)
    if lock_check.stdout.strip() == "False":
        text = f"{dir} has no record locks, so the death of a run cannot be detected"
        yield fail("journal", text, "set AMMETER_DIR to a local disk")
    else:
        yield _usable(dir, shutil.disk_usage(dir).free, slowest_seconds, hot_is_ok=hot.level == "ok")
    yield hot


def refused_runs(dir: Path) -> Iterator[Line]:
    """Reports runs in the folder that the collector refuses, with the newest of them."""
    refusals = sorted(dir.glob(f"*/*/{journal.REFUSAL_FILE}"), key=_changed_at)
    if refusals:
        more = f", and {len(refusals) - 1} more" if len(refusals) > 1 else ""
        newest = refusals[-1].parent
        problem, _, remedy = journal.refusal(newest).partition(DATA_STAYS)
        yield warn("delivery", f"{newest.parent}: {problem}{more}", remedy or "read shipper.log in that folder")


def _failed_process(process: subprocess.CompletedProcess[str]) -> Line:
    reason = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    remedy = "make sure that this Python can be started: Ammeter starts its shipper with it"
    return fail("processes", f"a new Python process fails: {reason}", remedy)


def _usable(dir: Path, free_bytes: int, slowest_seconds: float, hot_is_ok: bool) -> Line:
    if free_bytes < MIN_FREE_BYTES:
        remedy = "free some space, or set AMMETER_DIR to another disk; rows are thinned when space is short"
        return warn("journal", f"{dir}, {_size(free_bytes)} free", remedy)
    if slowest_seconds > SLOW_SECONDS and not hot_is_ok:
        return warn(
            "journal", f"{dir}, a write takes {1000 * slowest_seconds:.1f} ms", "set AMMETER_DIR to a local disk"
        )
    text = f"{dir}, private, {_size(free_bytes)} free, a write takes at most {1e6 * slowest_seconds:.0f} us"
    return ok("journal", text)


def _changed_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # delivered just now
        return 0.0


def _slowest_write(folder: Path) -> float:
    """Returns the seconds of the second-slowest of several writes."""
    seconds = []
    with (folder / "written").open("wb", buffering=0) as file:
        for _ in range(TEST_WRITES):
            began = time.perf_counter()
            file.write(bytes(TEST_WRITE_BYTES))
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)[-2]


def _check_lock(folder: Path) -> subprocess.CompletedProcess[str]:
    """Starts a process that reads a lock which this process owns.

    The start itself is a check too.
    """
    lock = journal.lock(folder / "lock")
    script = "import sys, pathlib, ammeter.journal as j; print(j.is_locked(pathlib.Path(sys.argv[1])))"
    command = [sys.executable, "-c", script, str(folder / "lock")]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    finally:
        if lock is not None:
            journal.unlock(lock)


def _hot() -> Line:
    delay = "otherwise a write may wait while a checkpoint is written to disk"
    try:
        status = os.statvfs(HOT)
    except OSError:
        return warn("tmpfs", f"{HOT} does not exist", f"mount it; {delay}")
    free_bytes = status.f_bavail * status.f_frsize
    if free_bytes < HOT_MIN_FREE_BYTES or not os.access(HOT, os.W_OK):
        remedy = f"give it 256 MiB (docker run --shm-size); {delay}"
        return warn("tmpfs", f"{HOT} has {_size(free_bytes)} free", remedy)
    return ok("tmpfs", f"{HOT}, {_size(free_bytes)} free, for the open segments of journals")


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
