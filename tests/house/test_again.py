"""What failed beside other tests is run again, alone, and still fails if it is broken."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import again

FLAKY = """
from pathlib import Path

def test_passes_the_second_time():
    began = Path(__file__).with_name("began")
    was_there = began.exists()
    began.touch()
    assert was_there
"""
BROKEN = "def test_fails():\n    assert False\n"


def _run(root: Path, **sources: str) -> int:
    """Runs the tests of these files, which fail, and those that failed again."""
    (root / "pytest.ini").write_text("[pytest]\n")
    for name, source in sources.items():
        (root / f"test_{name}.py").write_text(source)
    first = subprocess.run([sys.executable, "-m", "pytest", "-q"], cwd=root, capture_output=True, check=False)
    assert 1 == first.returncode, first.stdout.decode()
    return again.main(root)


def test_a_test_that_passes_alone_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert 0 == _run(tmp_path, flaky=FLAKY)
    said = capfd.readouterr().out
    assert said.endswith("failed beside other tests, and passed alone: test_flaky.py::test_passes_the_second_time\n")


def test_a_test_that_fails_again_fails(tmp_path: Path) -> None:
    assert 1 == _run(tmp_path, flaky=FLAKY, broken=BROKEN)


def test_failures_in_many_files_are_not_run_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert 1 == _run(tmp_path, **{f"broken{number}": BROKEN for number in range(again.MAX_FILES + 1)})
    assert "" == capfd.readouterr().out


def test_without_a_list_of_failures_nothing_is_run(tmp_path: Path) -> None:
    assert 1 == again.main(tmp_path)
    (tmp_path / again.FAILED).parent.mkdir(parents=True)
    (tmp_path / again.FAILED).write_text(json.dumps({}))
    assert 1 == again.main(tmp_path)
