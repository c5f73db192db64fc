"""`make test ARGS=--quick`: the tests of changed files, in less than two minutes.

Changed files are those that differ from the branch this one started from, committed or not. A source file leads to the
mirrored folder below tests/, a test file to itself, a helper to the tests that import it; tests/house is always
included. Without a change, the first test of each file runs. Files marked `long` are left out unless they changed
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
    **{ROOT / name: TESTS / name for name in ("trainer", "bench", "deploy")},
}
BRANCHES = ("origin/main", "main")
"""Branches from which others start."""


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
    return bool(selected()) and path.suffix == ".py" and path not in selected() and TESTS / "house" not in path.parents


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps files not marked `long`, and only the first test of each if nothing changed."""
    kept: list[pytest.Item] = []
    seen: set[Path] = set()
    for item in items:
        first = item.path not in seen
        seen.add(item.path)
        if item.get_closest_marker("long") and item.path not in changed():
            continue
        if selected() or first:
            kept.append(item)
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
