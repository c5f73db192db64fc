"""Cases run as a user runs them: broken and repaired, and by themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench.cases import report, runner
from bench.cases.__main__ import main
from bench.cases.case import Case
from bench.cases.registry import cases
from bench.cases.scoring import NAMED
from tests import forked
from tests.ranks import without_settings

CLIP = next(case for case in cases() if case.thread == "pytorch/examples#1196")
SHORT = tuple(case for case in cases() if case.ranks == 1)[:3]


def test_a_case_is_named_and_its_repaired_program_is_silent() -> None:
    score = runner.run(CLIP)
    assert (NAMED, [], [], "") == (score.result, score.lacks, score.alarms, score.trouble)
    assert "clip-before-unscale" == score.findings[0]


@pytest.mark.parametrize("case", SHORT, ids=lambda case: case.thread)
def test_a_repaired_program_runs_without_ammeter(case: Case, tmp_path: Path) -> None:
    command = [sys.executable, str(case.path), runner.REPAIRED]
    done = forked.run(command, env=without_settings(), cwd=tmp_path, timeout=5 * case.seconds, capture_output=True)
    assert 0 == done.returncode


def test_the_command_writes_both_result_files(tmp_path: Path) -> None:
    assert 0 == main(["--only", CLIP.program, "--workers", "1", "--write", str(tmp_path)])
    assert CLIP.thread in (tmp_path / "public_cases.md").read_text()
    assert '"named": 1' in (tmp_path / "public_cases.json").read_text()


def test_results_of_a_few_cases_do_not_replace_the_committed_ones() -> None:
    with pytest.raises(SystemExit):
        main(["--only", CLIP.program, "--write"])


def test_an_empty_selection_has_a_table() -> None:
    assert "0" == report.summary([])[0][1]
