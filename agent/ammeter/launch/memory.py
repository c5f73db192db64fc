"""How often the kernel has killed for want of memory, here: in the control group that this process belongs to."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def oom_kills(groups: str | None = None, root: Path = CGROUPS) -> int | None:
    """The count so far; None where it cannot be known. groups: the text of /proc/self/cgroup."""
    try:
        told = Path("/proc/self/cgroup").read_text() if groups is None else groups
    except OSError:
        return None
    for file in _files(told, root):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
        if counts and counts[0].isdigit():
            return int(counts[0])
    return None


def _files(groups: str, root: Path) -> list[Path]:
    """memory.events of version 2, memory.oom_control of version 1; in a container its own group is the root."""
    found = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        inner = path.lstrip("/")
        if not controllers:
            found += [root / inner / "memory.events", root / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [root / "memory" / inner / "memory.oom_control", root / "memory" / "memory.oom_control"]
    return found
