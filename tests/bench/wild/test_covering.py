"""The choice of recipes: pairs of values, and what is held out."""

from __future__ import annotations

import random
from itertools import islice

from bench.wild.covering import chosen, pairs, share_of_pairs
from bench.wild.faults import FAULTS
from bench.wild.pieces.styles import STYLES
from bench.wild.recipe import drawn, held_out_spellings


def test_a_cover_has_more_pairs_than_a_draw() -> None:
    recipes = chosen(0, 60, lambda _: True)
    by_chance = list(islice(drawn(random.Random(0)), 60))
    assert share_of_pairs(recipes) > share_of_pairs(by_chance)
    assert len(set().union(*map(pairs, recipes))) > 1.1 * len(set().union(*map(pairs, by_chance)))


def test_a_few_hundred_recipes_have_most_pairs() -> None:
    assert share_of_pairs(chosen(0, 700, lambda _: True), draws=3000) > 0.7


def test_all_faults_and_styles_are_drawn() -> None:
    recipes = chosen(0, 120, lambda _: True)
    assert set(FAULTS) == {recipe.fault for recipe in recipes}
    assert set(STYLES) == {recipe.style for recipe in recipes}


def test_a_smaller_sample_is_the_beginning_of_a_larger_one() -> None:
    assert chosen(4, 5, lambda _: True) == chosen(4, 9, lambda _: True)[:5]


def test_development_does_not_see_what_is_held_out() -> None:
    seen = chosen(0, 100, lambda recipe: not recipe.held_out)
    assert not [recipe for recipe in seen if recipe.spelling in held_out_spellings(recipe.fault)]
    assert not [recipe for recipe in seen if STYLES[recipe.style].held_out]


def test_a_third_of_styles_and_spellings_is_held_out() -> None:
    styles = sum(style.held_out for style in STYLES.values()) / len(STYLES)
    held_out = sum(len(held_out_spellings(fault)) for fault in FAULTS)
    assert 0.3 < styles < 0.4
    assert 0.2 < held_out / sum(len(fault.spellings) for fault in FAULTS.values()) < 0.4


def test_many_verdicts_have_a_fault() -> None:
    assert len({fault.accepted[0] for fault in FAULTS.values()}) >= 25
