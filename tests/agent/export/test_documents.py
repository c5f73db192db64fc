"""The commands and programs of docs/exporting.md work as they are written there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ammeter.__main__ import main
from ammeter.export.command import TARGETS
from tests.agent.export.exporting import recorded
from tests.agent.export.otlp_receiver import receiving
from tests.agent.report.reporting import RUN
from tests.agent.stream_builder import warm
from tests.house import tree
from tests.parts import library

pytestmark = pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
"""MLflow's, in its models for databases."""

PAGE = (tree.ROOT / "docs" / "exporting.md").read_text()
COMMANDS = {
    words[4]: words[1:] for line in re.findall(r"^ammeter export .*$", PAGE, re.M) if (words := shlex.split(line))
}
"""Format -> the words of its command."""

MODULES = {
    "parquet": "pyarrow",
    "tensorboard": "tensorboard",
    "mlflow": "mlflow",
    "wandb": "wandb",
    "otlp": "opentelemetry.exporter.otlp.proto.http",
}


def run(words: list[str], tmp_path: Path) -> None:
    """Runs a command of the page for a run of 40 steps, in an empty folder."""
    recorded(warm(40), tmp_path / "journals")
    words = [str(tmp_path / "journals" / RUN) if word == "RUN" else word for word in words]
    assert 0 == main(words)


def test_the_page_has_a_command_for_every_target() -> None:
    assert list(TARGETS) == list(COMMANDS)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_command_of_the_page_works(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if target in MODULES:
        library(MODULES[target])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    words = COMMANDS[target]
    if target == "otlp":
        with receiving() as receiver:
            run([word.replace("http://localhost:4318", receiver.url) for word in words], tmp_path)
            assert receiver.metrics
    else:
        run(words, tmp_path)
        assert (tmp_path / words[-1].removeprefix("sqlite:///")).exists()
    if target == "wandb":
        library("wandb").teardown()


@pytest.mark.parametrize(("target", "result"), [("csv", "losses"), ("parquet", "table")])
def test_every_program_of_the_page_works(
    target: str, result: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if target in MODULES:
        library(MODULES[target])
    (program,) = (block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if f"run.{target}" in block)
    monkeypatch.chdir(tmp_path)
    run(COMMANDS[target], tmp_path)
    names: dict[str, Any] = {}
    exec(compile(program, "exporting.md", "exec"), names)
    assert 40 == len(names[result])


def test_every_extra_of_the_page_exists_and_every_target_with_a_library_has_one() -> None:
    extras = tomllib.loads((tree.ROOT / "agent" / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    documented = re.findall(r"pip install 'ammeter\[(\w+)\]'", PAGE)
    assert sorted(MODULES) == sorted(documented)
    assert set(documented) <= set(extras)
