"""The GPU benchmark's frame: time limits, failing and hanging parts, interruption, and its result file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.agent.gpu import __main__ as gpu
from bench.agent.gpu import parts
from bench.agent.gpu.parts import PARTS, TOTAL_SECONDS
from bench.agent.gpu.rows import Row, document, read
from bench.common.paths import RESULTS, ROOT

FAKE = """
import os, sys, time
from bench.agent.gpu.rows import Row, emit
name = sys.argv[sys.argv.index("--part") + 1]
"""
"""Stands for the parts, so that nothing is measured."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    script = tmp_path / "fake.py"
    monkeypatch.setattr(parts, "COMMAND", [sys.executable, str(script)])
    return script


def test_everything_takes_less_than_eight_minutes_and_each_part_has_its_time() -> None:
    assert TOTAL_SECONDS <= 480 - 15, "start.py looks for a Python before"
    usual = 0.6 * sum(PARTS[name].seconds for name in ("machine", "kernel", "tests"))
    assert usual + gpu.COMPILE_WAIT_SECONDS + PARTS["cost"].seconds + PARTS["compiled"].seconds <= TOTAL_SECONDS


def test_failing_and_hanging_parts_keep_what_they_measured_and_the_next_part_runs(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PARTS, "cost", parts.Part("What does a step cost?", 2.0, 0.1))
    fake.write_text(
        FAKE
        + "emit(Row(name, 'a number', '1', '2', 'ok'))\n"
        + "print('a part of', name, flush=True)\n"
        + "if name == 'kernel': sys.exit('no memory')\n"
        + "while name == 'cost': time.sleep(1)\n"
    )
    out = tmp_path / "gpu.md"
    assert 1 == gpu.main(["--only", "kernel,tests,cost", "--out", str(out)])
    text = out.read_text()
    assert "| kernel | the part | it ended with 1 |  | FAILED |" in text
    assert "no memory" in text
    assert "| tests | a number | 1 | 2 | ok |" in text
    assert "| cost | a number | 1 | 2 | ok |" in text
    assert "| cost | the part | it took longer than 2 s |  | FAILED |" in text
    assert "a part of cost" in text
    assert "a part of machine." in text
    assert "tests: done" in capsys.readouterr().out


def test_a_machine_that_lacks_something_stops_the_run_and_leaves_earlier_results(fake: Path, tmp_path: Path) -> None:
    fake.write_text("import sys\nprint('stopped: no driver')\nsys.exit(1)\n")
    out = tmp_path / "gpu.md"
    out.write_text("of an earlier run")
    assert 1 == gpu.main(["--out", str(out)])
    assert "of an earlier run" == out.read_text()


def test_parts_for_which_no_time_is_left_are_named(fake: Path, tmp_path: Path) -> None:
    fake.write_text(FAKE + "emit(Row(name, 'a number', '1'))\nprint(name)\n")
    out = tmp_path / "gpu.md"
    assert 1 == gpu.main(["--out", str(out), "--seconds", "25", "--only", "kernel,compiled"])
    text = out.read_text()
    assert "**Not complete. Not run: compiled: 2" in text
    assert "| compiled | the part | not run: 2" in text
    assert "| kernel | a number | 1 |  |  |" in text


def test_an_interrupted_run_keeps_what_was_measured_and_ends_its_processes(tmp_path: Path) -> None:
    fake, out = tmp_path / "fake.py", tmp_path / "gpu.md"
    fake.write_text(
        FAKE
        + "emit(Row(name, 'a number', '1'))\nprint(name, os.getpid(), flush=True)\n"
        + "while name == 'tests': time.sleep(1)\n"
    )
    program = (
        "import sys; from bench.agent.gpu import __main__ as gpu, parts;"
        f"parts.COMMAND = [sys.executable, {str(fake)!r}]; sys.exit(gpu.main(['--out', {str(out)!r}]))"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = next(int(line.split()[1]) for line in process.stdout if line.startswith("tests "))
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read()
    assert 1 == process.returncode
    assert "interrupted; what was measured is kept" in said
    text = out.read_text()
    assert "| tests | a number | 1 |  |  |" in text
    assert "not run: it did not come to it" in text
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_dry_run_is_marked_and_never_written_to_the_results(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--dry-run", "--out", str(RESULTS / "gpu.md")])
    assert "a dry run has no result" in capsys.readouterr().err
    text = document("a machine", [Row("kernel", "a | b", "1")], [("A title", "")], state="", dry=True)
    assert "DRY RUN without a GPU" in text
    assert "| kernel | a / b | 1 |" in text


def test_a_misspelt_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        gpu.main(["--only", "kernels"])
    assert "--only names kernels" in capsys.readouterr().err


def test_a_row_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text(Row("a", "b", "c").line + '{"part": "a"')
    assert [Row("a", "b", "c")] == read(file)
    assert [] == read(tmp_path / "none")
