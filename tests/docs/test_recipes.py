"""docs/recipes: each program trains under the command of its page, and its report has no finding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.docs import shell
from tests.docs.blocks import blocks
from tests.house import tree

pytestmark = pytest.mark.long

FOLDER = tree.ROOT / "docs" / "recipes"
RECIPES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README")
STEPS = {"huggingface": 30, "accelerate": 32, "lightning": 32, "ddp": 100, "fsdp": 100, "deepspeed": 100}
RANKS = {"ddp": 2, "fsdp": 2}
STAND_IN = Path(__file__).parent / "stand_ins"
"""Has a module `deepspeed`, which needs a GPU and a compiler to be installed, and the program of the same name."""


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_program_of_the_recipe_is_recorded_and_healthy(recipe: str, tmp_path: Path) -> None:
    (program,), (commands,) = blocks(FOLDER / f"{recipe}.md", "python"), blocks(FOLDER / f"{recipe}.md", "sh")
    assert commands.text.endswith("\nammeter report\n")
    (tmp_path / "train.py").write_text(program.text)
    programs = {**shell.PROGRAMS, "deepspeed": ""}
    paths = f"{STAND_IN}:{tree.ROOT}" if recipe == "deepspeed" else ""
    shell.run(f"{commands.text}ammeter report --json > report.json", tmp_path, programs, {"PYTHONPATH": paths})
    report = json.loads((tmp_path / "report.json").read_text())
    assert [] == report["findings"]
    assert STEPS[recipe] == report["summary"]["steps"]
    assert RANKS.get(recipe, 1) == report["run"]["world_size"]


def test_the_list_of_recipes_is_complete() -> None:
    listed = (FOLDER / "README.md").read_text()
    assert [] == [recipe for recipe in RECIPES if f"({recipe}.md)" not in listed]
