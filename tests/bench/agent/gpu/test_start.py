"""The interpreter that runs the GPU benchmark, and packages that it lacks, without a network."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.agent.gpu import start

TORCH = """
__version__ = "1.2.3"
class cuda:
    is_available = staticmethod(lambda: {available})
"""


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Makes this interpreter one whose torch sees a GPU or none."""

    def make(*, available: bool) -> str:
        (tmp_path / "torch.py").write_text(TORCH.format(available=available))
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("GPU_PYTHON", sys.executable)
        return sys.executable

    return make


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    calls: list[Any] = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    return calls


def test_the_python_that_sees_a_gpu_runs_the_benchmark_from_the_repository(
    python: Callable[..., str], executed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    name = python(available=True)
    start.main(["--only", "kernel"])
    ((program, command, environment),) = executed
    assert (name, [name, "-m", "bench.agent.gpu", "--only", "kernel"]) == (program, command)
    assert environment["PYTHONPATH"].startswith(f"{start.ROOT}/agent:{start.ROOT}:")


def test_without_a_gpu_the_command_stops_with_an_explanation_and_a_dry_run_does_not(
    python: Callable[..., str], executed: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    python(available=False)
    assert 1 == start.main([])
    out = capsys.readouterr().out
    assert "torch 1.2.3, no GPU" in out
    assert "no Python here has a torch that sees a GPU" in out
    assert [] == executed
    monkeypatch.chdir("/")
    start.main(["--dry-run"])
    assert executed


def test_an_interpreter_that_does_not_start_or_has_no_torch_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_PYTHON", str(tmp_path / "none"))
    assert 1 == start.main([])
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("GPU_PYTHON", sys.executable)
    assert 1 == start.main(["--dry-run"])
    assert "libcudart.so is missing" in capsys.readouterr().out


def test_python3_comes_before_this_one_and_the_virtual_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_PYTHON", raising=False)
    assert sys.executable in start.candidates()
    monkeypatch.setenv("GPU_PYTHON", "")
    assert sys.executable in start.candidates()


def test_what_is_missing_comes_from_the_wheels(
    python: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = python(available=True)
    monkeypatch.setattr(start, "PACKAGES", tmp_path / "packages")
    monkeypatch.setattr(start, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(start, "NEEDED", {"not_there": "not-there"})
    monkeypatch.setattr(start, "LOOK", start.LOOK.replace("('jinja2', ", "('not_there', 'jinja2', "))
    assert ("cuda", ["not_there"]) == start.look(name)
    (tmp_path / "wheels").mkdir()
    with zipfile.ZipFile(tmp_path / "wheels" / "not_there-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("not_there.py", "")
        folder = "not_there-1.0.dist-info"
        wheel.writestr(f"{folder}/METADATA", "Metadata-Version: 2.1\nName: not-there\nVersion: 1.0\n")
        wheel.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{folder}/RECORD", "")
    assert start.install(name, ["not_there"])
    assert ("cuda", []) == start.look(name)


def test_what_can_be_installed_from_nowhere_is_named(
    python: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = python(available=True)
    monkeypatch.setattr(start, "PACKAGES", tmp_path / "packages")
    monkeypatch.setattr(start, "WHEELS", start.ROOT / "build" / "gpu" / "no-wheels")
    monkeypatch.setattr(start, "NEEDED", {"not_there": "not-there"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert not start.install(name, ["not_there"])
    out = capsys.readouterr().out
    assert "they cannot be installed: " in out
    assert "`make gpu-wheels` downloads them elsewhere" in out
