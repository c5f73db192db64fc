"""docs/migration.md: programs run, before and after, and each name that a table gives for Ammeter exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ammeter.recorded.recorded_run import load
from ammeter.verdicts import BY_ID
from ammeter.wire.frames import SCALARS, STATS
from tests.docs.blocks import Block, blocks
from tests.house import tree
from tests.parts import library

PAGE = tree.ROOT / "docs" / "migration.md"
PROGRAMS = blocks(PAGE, "python")
NOT_INSTALLED = ("sagemaker",)
"""Modules of programs that cannot run here: their services, or what they need, are not there."""


@pytest.fixture
def names() -> dict[str, Any]:
    """What the programs have from their readers."""
    model = torch.nn.Linear(4, 2)
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "scaler": torch.amp.GradScaler("cpu"),
    }


def modules(block: Block) -> list[str]:
    return re.findall(r"^(?:import|from) (\w+)", block.text, re.MULTILINE)


def runnable() -> list[Block]:
    return [block for block in PROGRAMS if not set(modules(block)) & set(NOT_INSTALLED)]


@pytest.mark.parametrize("block", runnable(), ids=lambda block: f"{modules(block)[0]}-{block.line}")
def test_the_program_runs(block: Block, names: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in modules(block):
        library(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AMMETER_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    model = names["model"]
    try:
        exec(compile(block.text, str(block), "exec"), names)
        if "ammeter" in modules(block):
            assert 1 == steps_recorded(names)
        else:
            assert bool(model._forward_hooks) == (modules(block) != ["torch"])
    finally:
        torch.autograd.set_detect_anomaly(False)
        if "wandb" in modules(block):
            names["wandb"].unwatch(model)
            names["wandb"].teardown()


def steps_recorded(names: dict[str, Any]) -> int:
    """Steps in the journal after one step."""
    model, optimizer, scaler, run = (names[name] for name in ("model", "optimizer", "scaler", "run"))
    scaler.scale(model(torch.ones(2, 4)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    run.close()
    return load(run.path).rows


def test_the_debugger_of_transformers_raises_where_a_verdict_reports(names: dict[str, Any]) -> None:
    """The table compares the two: this is what the one does."""
    (block,) = (block for block in PROGRAMS if "transformers" in modules(block))
    exec(compile(block.text, str(block), "exec"), names)
    with pytest.raises(ValueError, match="inf/nan"):
        names["model"](torch.full((1, 4), float("inf")))


def test_only_programs_of_sagemaker_are_not_run() -> None:
    assert 1 == len(PROGRAMS) - len(runnable())


def test_every_verdict_and_column_of_the_tables_exists() -> None:
    """The last cell of a row has what Ammeter has; names with a hyphen are verdicts, others columns, in backticks."""
    rows = re.findall(r"^\|.*\| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+[-.][a-z_.-]*[a-z])`", row)}
    assert 20 <= len(named)
    known = {*BY_ID, *STATS, *SCALARS}
    assert set() == named - known - {"run.close"}
