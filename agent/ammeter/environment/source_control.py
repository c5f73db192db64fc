"""Reads the git commit that a program was started from, from its repository's files.

git is not run: it can wait for a lock, a hook or a file system. The files read are next to the script, which Python has
just read from there, and every read is bounded. Uncommitted changes are not detected.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

MAX_PARENTS = 32
MAX_HEAD_BYTES = 4_096
MAX_PACKED_BYTES = 4 * 2**20
"""Size limit for packed-refs, which has about 60 bytes per reference."""

_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def commit_of(script: str) -> str:
    """Returns the commit of HEAD in the script's repository; "" if there is none.

    Also "" if it cannot be read.
    """
    if not script or script in ("-", "-c"):
        return ""
    with suppress(OSError, ValueError, RuntimeError):  # RuntimeError: a loop of links
        folder = _git_folder(Path(script).resolve().parent)
        return _head(folder) if folder else ""
    return ""


def _git_folder(folder: Path) -> Path | None:
    for parent in [folder, *folder.parents][:MAX_PARENTS]:
        git = parent / ".git"
        if git.is_dir():
            return git
        if git.is_file():  # of a worktree or a submodule
            return parent / _text(git).removeprefix("gitdir:").strip()
    return None


def _head(folder: Path) -> str:
    head = _text(folder / "HEAD")
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    if not name.startswith("refs/") or ".." in name:
        return ""
    common = folder / _text(folder / "commondir") if (folder / "commondir").is_file() else folder
    for git_folder in (folder, common):
        if (git_folder / name).is_file():
            return _commit(_text(git_folder / name))
    return _packed(common / "packed-refs", name)


def _packed(file: Path, name: str) -> str:
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        lines = opened.read(MAX_PACKED_BYTES).decode(errors="replace").splitlines()
    return next((_commit(line) for line in lines if line.endswith(f" {name}")), "")


def _text(file: Path) -> str:
    with file.open("rb") as opened:
        return opened.read(MAX_HEAD_BYTES).decode(errors="replace").strip()


def _commit(text: str) -> str:
    match = _COMMIT.match(text)
    return match[0] if match else ""
