"""The recorded release, installed once, and copies of its databases."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.compat.release import DATABASE, DUMP, Installation, install
from tests.parts import need
from tests.server.databases import postgresql


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """Both wheels of the release, in a folder of their own."""
    return install(tmp_path_factory.mktemp("release") / "site")


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def copy_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], str]]:
    """Makes a copy of the release's database and returns its URL."""
    if request.param == "sqlite":
        yield lambda: copy_file(tmp_path_factory.mktemp("database"))
    else:
        with ExitStack() as databases:
            yield lambda: restore(databases.enter_context(postgresql(migrated=False)))


def copy_file(folder: Path) -> str:
    shutil.copy(DATABASE, folder / "collector.db")
    return f"sqlite:///{folder / 'collector.db'}"


def restore(url: str) -> str:
    command = [need("psql"), "--quiet", "--no-psqlrc", "--set", "ON_ERROR_STOP=1", "--file", str(DUMP), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return url
