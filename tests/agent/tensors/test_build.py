"""What installing the agent compiles: into the package where that works, and nothing half done where it does not."""

from __future__ import annotations

import ctypes
import shutil
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from types import ModuleType

import pytest

from tests.house.tree import ROOT

AGENT = ROOT / "agent"
compiler = pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(AGENT))
    import hatch_build

    return hatch_build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(AGENT / "ammeter" / "tensors" / "reading.c", tmp_path)
    return tmp_path


def failing(folder: Path, words: str) -> str:
    """The path of a compiler that says this and fails."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\necho '{words}' >&2\nexit 1\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@compiler
def test_a_library_is_made_that_knows_what_it_was_made_from(build: ModuleType, folder: Path) -> None:
    assert [] == build.compile_into(folder)
    library = ctypes.CDLL(str(folder / "libreading.so"))
    assert zlib.crc32((folder / "reading.c").read_bytes()) == library.ammeter_source() & 0xFFFFFFFF
    assert {"reading.c", "libreading.so"} == {path.name for path in folder.iterdir()}


@compiler
def test_a_compiler_that_knows_no_processors_makes_the_portable_library(
    build: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "compiler"
    path.write_text('#!/bin/sh\ncase "$*" in *PORTABLE*) exec cc "$@";; *) exit 1;; esac\n')
    path.chmod(0o700)
    monkeypatch.setenv("CC", str(path))
    assert [] == build.compile_into(folder)
    assert 0 == ctypes.CDLL(str(folder / "libreading.so")).ammeter_level()


@compiler
def test_flags_of_the_environment_do_not_reach_the_compiler(
    build: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAGS", "-no-such-flag")
    assert [] == build.compile_into(folder)


def test_without_a_compiler_the_old_library_goes_and_the_remedy_is_told(
    build: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "libreading.so").write_bytes(b"of an older source")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    assert ["no C compiler was found: install gcc or clang, or set CC"] == build.compile_into(folder)
    assert ["reading.c"] == [path.name for path in folder.iterdir()]


def test_a_compiler_that_fails_leaves_nothing_and_its_first_line_is_told(
    build: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", failing(folder, "a header is missing"))
    assert [f"{folder / 'compiler'}: a header is missing"] * 2 == build.compile_into(folder)
    assert not (folder / "libreading.so").exists()


def test_a_compiler_that_is_not_there_is_named(
    build: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc -m64")
    failures = build.compile_into(folder)
    assert failures
    assert all("/nowhere/cc" in failure for failure in failures)


@compiler
def test_what_does_not_load_here_is_not_kept(build: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "compiler"
    path.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho nonsense > "$2"\n')
    path.chmod(0o700)
    monkeypatch.setenv("CC", str(path))
    assert "does not load" in build.compile_into(folder)[0]
    assert {"reading.c", "compiler"} == {path.name for path in folder.iterdir()}


def wheel(agent: Path, folder: Path) -> tuple[str, set[str]]:
    """(file name, names inside) of the wheel that a copy of the distribution becomes."""
    shutil.copytree(AGENT, agent, ignore=shutil.ignore_patterns("*.so", "__pycache__", "dist"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=agent, check=True, capture_output=True, timeout=120)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        return path.name, set(opened.namelist())


@compiler
def test_a_wheel_with_the_library_is_for_this_platform_and_every_python(tmp_path: Path) -> None:
    name, inside = wheel(tmp_path / "agent", tmp_path / "made")
    assert "ammeter/tensors/libreading.so" in inside
    assert "-py3-none-" in name
    assert "none-any" not in name


def test_a_wheel_without_a_compiler_is_for_every_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/nowhere/cc")
    name, inside = wheel(tmp_path / "agent", tmp_path / "made")
    assert "ammeter/tensors/reading.c" in inside
    assert "ammeter/tensors/libreading.so" not in inside
    assert name.endswith("-py3-none-any.whl")
