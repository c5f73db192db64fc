"""`make test ARGS=--quick`: the tests of changed files, in less than two minutes.

Changed files are those that differ from the branch this one started from, committed or not. A source file leads to the
mirrored folder below tests/, a test file to itself, a helper to the tests that import it; tests/house is always
included. Of more than MAX_WHOLE_FILES files the first test of each runs, but all tests of changed test files. Without a
change, the first test of each file outside SLOW_FOLDERS runs. Files marked `long` are left out unless they changed
themselves.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
MIRRORS = {
    ROOT / "agent" / "ammeter": TESTS / "agent",
    ROOT / "server" / "ammeter_server": TESTS / "server",
    **{ROOT / name: TESTS / name for name in ("trainer", "bench", "deploy", "website", "docs")},
}
BRANCHES = ("origin/main", "main")
"""Branches from which others start."""

MAX_WHOLE_FILES = 64
"""Test files whose tests all run. A file takes 2.3 s of CPU time on average: 64 of them, on two cores, 75 s of the two
minutes; the rest is for collection, tests/house and the start of databases."""

SLOW_FOLDERS = tuple(TESTS / name for name in ("bench", "compat", "packaging"))
"""Their first tests take half of the time of all first ones: they measure, install an earlier release, build wheels."""

HOUSE = TESTS / "house"


@cache
def changed() -> tuple[Path, ...]:
    """Returns files that differ from the base branch, and new files."""
    base = next(filter(None, (_git("merge-base", "HEAD", branch) for branch in BRANCHES)), "HEAD").strip()
    names = _git("diff", "--name-only", base) + _git("ls-files", "--others", "--exclude-standard")
    return tuple(ROOT / name for name in names.splitlines())


def _git(*words: str) -> str:
    """Returns the output of a git command, or nothing if it fails.

    The tree may be an archive without history.
    """
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


@cache
def selected() -> frozenset[Path]:
    """Returns the test files of changed files; none if nothing changed."""
    return frozenset(file for path in changed() for file in files_for(path))


def files_for(path: Path) -> Iterator[Path]:
    """Yields the test files for a change of this file."""
    if TESTS in path.parents:
        yield from _files_for_test_file(path)
    for source, mirror in MIRRORS.items():
        if source not in path.parents:
            continue
        folder = mirror / path.parent.relative_to(source)
        if folder.is_dir() and folder not in (TESTS / "agent", TESTS / "server"):  # a whole distribution's tests
            yield from folder.rglob("test_*.py")
        else:
            yield from mirror.rglob(f"test_{path.stem}*.py")


def _files_for_test_file(path: Path) -> Iterable[Path]:
    if path.name.startswith("test_"):
        return [path] if path.is_file() else []
    package, name = ".".join(path.parent.relative_to(ROOT).parts), path.stem
    words = (f"{package}.{name}", f"from {package} import {name}")
    return [file for file in TESTS.rglob("test_*.py") if any(word in file.read_text() for word in words)]


def is_ignored(path: Path) -> bool:
    """Whether a file need not be collected."""
    return bool(selected()) and path.suffix == ".py" and path not in selected() and HOUSE not in path.parents


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the selected tests of files not marked `long`."""
    candidates = [item for item in items if not item.get_closest_marker("long") or item.path in changed()]
    runs_whole = len({item.path for item in candidates if HOUSE not in item.path.parents}) <= MAX_WHOLE_FILES
    seen: set[Path] = set()
    kept = set[pytest.Item]()
    for item in candidates:
        if _is_kept(item.path, is_first=item.path not in seen, runs_whole=runs_whole):
            kept.add(item)
        seen.add(item.path)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _is_kept(path: Path, *, is_first: bool, runs_whole: bool) -> bool:
    if selected():
        return is_first or runs_whole or path in changed() or HOUSE in path.parents
    return is_first and not any(folder in path.parents for folder in SLOW_FOLDERS)
