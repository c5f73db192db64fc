"""The registry of cases: each thread once, with a program that reproduces it without importing Ammeter."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from bench.cases.case import PROGRAMS, Case
from bench.cases.registry import cases

CASES = cases()
MAX_PROGRAMS = 15


def test_each_thread_and_each_program_is_a_case_once() -> None:
    assert CASES
    assert len(CASES) == len({case.thread for case in CASES}) == len({case.program for case in CASES})


def test_every_program_belongs_to_a_case() -> None:
    written = {str(path.relative_to(PROGRAMS)) for path in PROGRAMS.rglob("*.py")}
    assert {case.program for case in CASES} == written


def test_no_folder_has_too_many_programs() -> None:
    folders = [path for path in PROGRAMS.iterdir() if path.is_dir()]
    assert [] == [str(folder) for folder in folders if len(list(folder.glob("*.py"))) > MAX_PROGRAMS]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.thread)
def test_a_case_is_complete(case: Case) -> None:
    assert re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", case.thread)
    assert case.title
    assert case.verdicts
    assert case.fix
    for pattern in case.fix:
        re.compile(pattern)
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", verdict) for verdict in case.verdicts)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.thread)
def test_a_program_has_the_number_of_its_thread_and_tells_its_story(case: Case) -> None:
    assert Path(case.program).stem.endswith("_" + case.thread.partition("#")[2])
    tree = ast.parse(case.path.read_text(encoding="utf-8"))
    story = (ast.get_docstring(tree) or "").splitlines()
    assert 3 <= len(story) <= 10
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert set() == {name.partition(".")[0] for name in names} & {"ammeter", "bench", "tests"}
    assert '"--repaired" in sys.argv' in case.path.read_text(encoding="utf-8")
