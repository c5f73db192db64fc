"""Reads the memory limit and OOM kill count of a process's control group."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")

UNLIMITED_BYTES = 2**60
"""Lower bound of the number that cgroup version 1 reports if there is no limit."""


def groups_of(process: int | None = None) -> str:
    """Returns the text of /proc/PID/cgroup; '' if it cannot be read.

    Without a process id, that of this process.
    """
    try:
        return Path(f"/proc/{process or 'self'}/cgroup").read_text()
    except OSError:
        return ""


def oom_kills(groups: str | None = None, root: Path = CGROUPS) -> int | None:
    """Returns the number of processes in the group that the kernel has OOM-killed.

    A kill counts in the group of the killed process, whichever limit above it was reached.

    Args:
        groups: result of groups_of(); default: that of this process.

    Returns:
        The count, or None if it is unknown.
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
    """Returns the lowest limit in bytes of the group and its ancestors; 0 if none."""
    limits = []
    for file in _files(groups, root, "memory.max", "memory.limit_in_bytes"):
        for folder in _with_ancestors(file.parent, root):
            try:
                text = (folder / file.name).read_text().strip()
            except OSError:
                continue
            if text.isdigit() and 0 < int(text) < UNLIMITED_BYTES:
                limits.append(int(text))
    return min(limits, default=0)


def _with_ancestors(folder: Path, root: Path) -> Iterable[Path]:
    """Returns the folder and its ancestors up to the root."""
    return [path for path in (folder, *folder.parents) if path == root or root in path.parents]


def _files(groups: str, root: Path, version_2: str, version_1: str) -> list[Path]:
    """Returns possible paths of a group's file, by cgroup version.

    In a container, its own group is the root.
    """
    files = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        relative = path.lstrip("/")
        if not controllers:
            files += [root / relative / version_2, root / version_2]
        elif "memory" in controllers.split(","):
            files += [root / "memory" / relative / version_1, root / "memory" / version_1]
    return files
