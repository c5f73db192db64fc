from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.torch_hooks import call_site

ASK = "def ask(call):\n    return call()\n"


def _compiled(source: str, path: str) -> Callable[..., Any]:
    """The function `ask` of this source, as if it stood in this file."""
    names: dict[str, Any] = {}
    exec(compile(source, path, "exec"), names)
    return names["ask"]  # type: ignore[no-any-return]


def test_the_line_is_that_of_the_program_with_its_path_as_seen_from_here() -> None:
    here = Path(__file__).relative_to(Path.cwd()) if Path(__file__).is_relative_to(Path.cwd()) else Path(__file__)
    assert f"{here}:{sys._getframe().f_lineno}" == call_site.line()


def test_frames_of_torch_and_of_ours_are_passed_over() -> None:
    inside = _compiled(ASK, os.path.join(os.path.dirname(torch.__file__), "mine.py"))
    ours = _compiled(ASK, os.path.join(os.path.dirname(call_site.__file__), "mine.py"))
    line = sys._getframe().f_lineno + 1
    assert inside(lambda: ours(call_site.line)).endswith(f"test_call_site.py:{line}")


def test_a_folder_whose_name_only_begins_like_ours_is_the_programs() -> None:
    beside = os.path.dirname(os.path.dirname(call_site.__file__)) + "_plugin/train.py"
    assert _compiled(ASK, beside)(call_site.line).endswith("ammeter_plugin/train.py:2")


def test_code_without_a_file_is_passed_over() -> None:
    typed = _compiled(ASK, "<string>")
    assert "test_call_site.py" in typed(call_site.line)


def test_a_file_outside_the_working_directory_has_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "/elsewhere/train.py:2" == _compiled(ASK, "/elsewhere/train.py")(call_site.line)


def test_a_working_directory_that_is_gone_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    shutil.rmtree(gone)
    assert call_site.line().startswith(f"{__file__}:")
