"""Mutants: each changes a healthy program in one way, keeps its lines and changes the numbers of the oracle."""

from __future__ import annotations

import ast
import random
from itertools import islice
from pathlib import Path

import pytest

from bench.wild import oracle, processes
from bench.wild.mutants import MUTANTS, mutants_of, mutate
from bench.wild.program import assemble
from bench.wild.recipe import Recipe, drawn

RECIPES = list(islice(drawn(random.Random(2)), 120))


def test_every_mutant_fits_some_program() -> None:
    assert set(MUTANTS) == {name for recipe in RECIPES for name in mutants_of(recipe)}


def test_a_mutant_differs_from_the_repaired_program_in_its_places_alone() -> None:
    for recipe in RECIPES:
        twin = assemble(recipe, "twin")
        assert twin is not None
        for name in mutants_of(recipe):
            mutant = mutate(recipe, name)
            assert ast.parse(mutant.text)
            lines = list(enumerate(zip(twin.text.splitlines(), mutant.text.splitlines(), strict=True), 1))
            changed = {number for number, (old, new) in lines if old != new}
            calls = [f".{method}(" for method in MUTANTS[name].uses]
            uses = {number for number, (_, new) in lines if any(call in new for call in calls)}
            assert mutant.place_lines == changed | uses


def test_the_uses_of_a_mutant_are_places_of_its_fault() -> None:
    """Only what the fault of the same name accepts is accepted of a mutant."""
    slots = {"backward": "backward", "unscale_": "unscale", "step": "step"}
    for mutant in MUTANTS.values():
        assert {slots[method] for method in mutant.uses} <= set(mutant.fault.place_slots)


@pytest.mark.parametrize("name", ["clip-first", "past-the-scaler", "unscaled-loss"])
def test_a_mutant_has_other_numbers(name: str, tmp_path: Path) -> None:
    recipe = Recipe.parse("clip-before-unscale/torch/late/main/mlp/sgd/fp16/run/200ms/4")
    twin = assemble(recipe, "twin")
    assert twin is not None
    healthy = processes.record(recipe, twin, tmp_path / "twin")
    broken = processes.record(recipe, mutate(recipe, name), tmp_path / "mutant")
    assert "" == healthy.trouble
    assert 0 == oracle.symptom(broken, healthy)
