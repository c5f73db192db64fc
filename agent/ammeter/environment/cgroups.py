"""What the kernel says of memory in a process's control group: its limit, and how often it killed for want of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")

UNLIMITED_BYTES = 2**60
"""Version 1 has a number of this size where there is no limit."""


def groups_of(process: int | None = None) -> str:
    """The text of /proc/PID/cgroup, of this process without one; '' where it cannot be read."""
    try:
        return Path(f"/proc/{process or 'self'}/cgroup").read_text()
    except OSError:
        return ""


def oom_kills(groups: str | None = None, root: Path = CGROUPS) -> int | None:
    """How many processes of the group the kernel has killed so far; None where it cannot be known.

    A kill counts in the group of whoever is killed, whichever limit above it was reached. groups: of groups_of().
    """
    for file in _files(groups_of() if groups is None else groups, root, "memory.events", "memory.oom_control"):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
        if counts and counts[0].isdigit():
            return int(counts[0])
    return None


def memory_limit(groups: str, root: Path = CGROUPS) -> int:
    """The lowest limit in bytes of the group and those above it; 0 where there is none or it cannot be read."""
    found = []
    for file in _files(groups, root, "memory.max", "memory.limit_in_bytes"):
        for folder in _upwards(file.parent, root):
            try:
                said = (folder / file.name).read_text().strip()
            except OSError:
                continue
            if said.isdigit() and 0 < int(said) < UNLIMITED_BYTES:
                found.append(int(said))
    return min(found, default=0)


def _upwards(folder: Path, root: Path) -> Iterable[Path]:
    """The folder and those above it, as long as they lie below the root."""
    return [each for each in (folder, *folder.parents) if each == root or root in each.parents]


def _files(groups: str, root: Path, version_2: str, version_1: str) -> list[Path]:
    """Where a file of the group may lie, by version; in a container its own group is the root."""
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        inner = path.lstrip("/")
        if not controllers:
            found += [root / inner / version_2, root / version_2]
        elif "memory" in controllers.split(","):
            found += [root / "memory" / inner / version_1, root / "memory" / version_1]
    return found
