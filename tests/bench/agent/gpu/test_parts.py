"""Parts of the GPU benchmark on machines that lack something, and with results that are wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.agent.gpu import rows, tested, wheels
from bench.common.paths import ROOT

PROGRAM = """
import sys, torch
from bench.agent.gpu import cost, kernel, machine, stand_in
stand_in.install()
"""


@pytest.fixture
def rows_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(rows.ROWS, str(tmp_path / "rows"))
    return tmp_path / "rows"


def ran(program: str) -> tuple[int, str]:
    """The exit code and the output of a part in a process whose CUDA is a stand-in."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("lacks", "reason"),
    [
        ("torch.cuda.is_available = lambda: False", "no device, or its driver is too old for this torch"),
        ("torch.cuda.is_available = lambda: False; torch.version.cuda = None", "(no CUDA)"),
        ("torch.ones = lambda *_, **__: 1 / 0", "the device computes nothing: ZeroDivisionError"),
        ("torch.ones = lambda *_, **__: torch.zeros(1)", "the device computes 2048 as 0.0"),
        ("torch.cuda.mem_get_info = lambda: (2**30, 2**31)", "1 of 2 GiB of device memory are free; 30 needed"),
        ("torch.cuda.get_device_capability = lambda: (6, 1)", "compute capability (6, 1) is too old"),
    ],
    ids=["device", "torch for CUDA", "driver", "numbers", "memory", "capability"],
)
def test_a_machine_that_lacks_something_is_refused_with_the_reason(lacks: str, reason: str, rows_file: Path) -> None:
    enough = "torch.cuda.mem_get_info = lambda: (2**36, 2**37)\n"
    code, output = ran(f"{enough}{lacks}\nsys.exit(machine.run(False))")
    assert 1 == code, output
    assert f"stopped: {output.partition('stopped: ')[2]}".startswith("stopped: ")
    assert reason in output
    assert rows.FAILED == rows.read(rows_file)[0].result


def test_what_only_some_results_need_is_named_as_missing(rows_file: Path) -> None:
    code, output = ran("sys.modules['triton'] = None\nmachine.run(True); sys.exit(kernel.run(True))")
    assert 0 == code, output
    assert "there is no pass to measure" in output
    missing = [(row.part, row.what) for row in rows.read(rows_file) if row.result == rows.LEFT_OUT]
    assert [("machine", "Triton"), ("kernel", "the pass")] == missing


def test_a_kernel_with_wrong_numbers_fails_its_part(rows_file: Path) -> None:
    wrong = "kernel.cuda.check = lambda elements: ['torch.float32: the norms differ']\nkernel.KINDS = ()\n"
    code, output = ran(f"{wrong}sys.exit(kernel.run(True))")
    assert 1 == code
    assert "- wrong: torch.float32: the norms differ" in output
    assert [rows.FAILED] == [row.result for row in rows.read(rows_file)]


def test_a_group_that_fails_and_one_that_comes_too_late_are_named(rows_file: Path) -> None:
    code, output = ran(
        "compare, calls = cost.compare, []\n"
        "def failing(*words, **options):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 1: raise torch.OutOfMemoryError('no memory')\n"
        "    return [cost.Skipped('a peer', 'it is not installed')]\n"
        "cost.compare = failing\n"
        "bf16, fp16 = cost.specs(True)\n"
        "groups = [cost.Group(spec, cost.DEFAULT, 1, 1, 0.1) for spec in (bf16, fp16)]\n"
        "code = cost.measure('cost', groups, 60, dry=True)\n"
        "cost.measure('cost', groups[:1], -1, dry=True)\n"
        "sys.exit(code)"
    )
    assert 1 == code, output
    found = [(row.measured, row.result) for row in rows.read(rows_file)]
    assert found[:2] == [("OutOfMemoryError: no memory", rows.FAILED), ("it is not installed", rows.LEFT_OUT)]
    assert 2 * [("the time was up", rows.LEFT_OUT)] == found[2:]


TESTS = """
import pytest

@pytest.mark.parametrize("number", [1, 2])
def test_of_two(number):
    assert number == 1, "a number"

def test_that_passes(): ...

def test_that_is_skipped():
    pytest.skip("no graph")
"""


def test_each_test_function_has_a_row_with_its_first_failure(tmp_path: Path, rows_file: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "test_none.py").write_text("import pytest; pytest.skip('no Triton', allow_module_level=True)")
    (tmp_path / "test_broken.py").write_text("import not_there")
    program = (
        "import sys, pytest; from bench.agent.gpu.tested import Counted; pytest.main(sys.argv[1:], plugins=[Counted()])"
    )
    options = [
        "--continue-on-collection-errors",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
    ]
    subprocess.run([sys.executable, "-c", program, str(tmp_path), *options], cwd=ROOT, capture_output=True, timeout=120)
    found = {row.what: (row.measured, row.result) for row in rows.read(rows_file)}
    assert found["of two"][0].startswith("1 of 2 passed")
    assert "FAILED [2] AssertionError: a number" in found["of two"][0]
    assert rows.FAILED == found["of two"][1] == found["test_broken.py"][1]
    assert rows.OK == found["that passes"][1]
    assert rows.LEFT_OUT == found["that is skipped"][1] == found["test_none.py"][1]
    assert "no graph" in found["that is skipped"][0]


def test_a_row_is_one_line_of_json(rows_file: Path) -> None:
    rows.emit(rows.Row("a", "b", "c\nd"))
    assert {"part": "a", "what": "b", "measured": "c\nd", "goal": "", "result": ""} == json.loads(rows_file.read_text())
    assert "a_function" == tested.function_of("tests/test_x.py::a_function[1::2]")


def test_wheels_that_cannot_be_downloaded_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "WHEELS", tmp_path / "wheels")
    monkeypatch.setattr(wheels, "ROOT", ROOT)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert 0 != wheels.main(["3.12"])
