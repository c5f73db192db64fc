"""The commands and the tables of docs/importing.md are those of the code."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ammeter.__main__ import main
from ammeter.importing.command import FORMATS, OPTIONS
from ammeter.verdicts import BY_ID
from tests.agent.export.exporting import recorded
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm
from tests.house import tree
from tests.parts import library

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")

PAGE = (tree.ROOT / "docs" / "importing.md").read_text()
COMMANDS = {
    words[4]: words[1:] for line in re.findall(r"^ammeter import .*$", PAGE, re.M) if (words := shlex.split(line))
}
"""Format -> the words of its command."""


def test_the_page_has_a_command_for_every_format_and_every_option() -> None:
    assert list(FORMATS) == list(COMMANDS)
    assert set() == {f"`--{option}`" for option, _ in OPTIONS.values()} - set(re.findall(r"`--[\w-]+`", PAGE))


@pytest.mark.parametrize("format", sorted(set(FORMATS)))
def test_every_command_of_the_page_works(
    format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "runs"))
    monkeypatch.delenv("WANDB_MODE", raising=False)
    source = COMMANDS[format][1]
    if format == "jsonl":
        Path(source).write_text('{"step": 0, "loss": 1.0}\n')
    else:
        if format != "csv":
            library(format)
        recorded(warm(40), tmp_path / "journals")
        target = source.replace("sqlite:///", f"sqlite:///{tmp_path}/")  # MLflow keeps a connection by its address
        assert 0 == main(["export", str(tmp_path / "journals" / RUN), "--to", format, target])
    if format == "wandb":
        library("wandb").teardown()
    capsys.readouterr()
    words = [word.replace("sqlite:///", f"sqlite:///{tmp_path}/") for word in COMMANDS[format]]
    assert 0 == main(words)
    assert "training loss: loss" in capsys.readouterr().out


def test_the_page_names_the_verdicts_that_a_history_can_have() -> None:
    section = PAGE.partition("## What is judged")[2]
    named = {name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`([\w-]+)`", row)}
    assert {name for name, verdict in BY_ID.items() if verdict.history} == named
