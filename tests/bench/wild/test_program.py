"""Generated programs: they compile, know nothing of Ammeter but the attaching line, and have twins."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from itertools import islice

import pytest

from bench.wild.faults import FAULTS
from bench.wild.pieces.architectures import ARCHITECTURES
from bench.wild.pieces.styles import STYLES
from bench.wild.program import assemble
from bench.wild.recipe import EXAMPLE, KINDS, Recipe, drawn

RECIPES = list(islice(drawn(random.Random(3)), 150))


def test_every_kind_of_every_program_compiles() -> None:
    for recipe in RECIPES:
        for kind in KINDS:
            if program := assemble(recipe, kind):
                for text in (program.text, program.recorded):
                    assert ast.parse(text)
                    assert "#@" not in text
                    assert not [name for name in ("$", "<<", "~~", "@back") if name in text]


def test_the_watched_and_the_recorded_text_have_the_same_lines() -> None:
    for recipe in RECIPES:
        program = assemble(recipe, "fault")
        assert program is not None
        watched, recorded = program.text.splitlines(), program.recorded.splitlines()
        assert len(watched) == len(recorded)
        differences = [pair for pair in zip(watched, recorded, strict=True) if pair[0] != pair[1]]
        assert all("__wild__" in after or "ammeter" in before for before, after in differences)


def test_a_program_contains_ammeter_only_where_it_attaches_itself() -> None:
    for recipe in RECIPES:
        program = assemble(recipe, "fault")
        assert program is not None
        assert ("ammeter" in program.text) == (recipe.attach != "run")
        assert "ammeter" not in program.recorded


def test_the_same_id_gives_the_same_program_and_another_seed_another_one() -> None:
    recipe = Recipe.parse(EXAMPLE)
    assert EXAMPLE == str(recipe)
    assert assemble(recipe, "fault") == assemble(Recipe.parse(EXAMPLE), "fault")
    assert assemble(recipe, "fault") != assemble(replace(recipe, seed=recipe.seed + 1), "fault")


def test_a_broken_program_differs_from_its_twin_where_the_place_is() -> None:
    for recipe in RECIPES:
        broken, twin = assemble(recipe, "fault"), assemble(recipe, "twin")
        assert broken is not None
        assert twin is not None
        assert broken.text != twin.text
        assert broken.place_lines
        assert not twin.place_lines


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_each_style_goes_with_each_architecture(style: str, arch: str) -> None:
    name = "ranks-apart" if style == "ranks" else "nonfinite-loss"
    spelling = next(iter(FAULTS[name].spellings))
    program = assemble(Recipe(name, spelling, "late", style, arch, "sgd", "bf16", "run", "1ms", 5), "twin")
    assert program is not None
    assert ast.parse(program.text)


def test_an_unknown_id_is_refused() -> None:
    with pytest.raises(ValueError, match="no program"):
        Recipe.parse("clip-before-unscale/helper")
    with pytest.raises(ValueError, match="no possible program"):
        Recipe.parse(EXAMPLE.replace("fp16", "fp32"))
