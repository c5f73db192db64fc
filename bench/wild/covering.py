"""Chooses recipes so that each pair of values of two dimensions occurs as early as possible."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import combinations, islice

from bench.wild.recipe import Recipe, drawn

CANDIDATES = 40
"""Recipes of which the one with the most new pairs is taken."""

_DIMENSIONS = [field.name for field in fields(Recipe) if field.name != "seed"]

Pair = tuple[tuple[str, str], tuple[str, str]]


def chosen(seed: int, count: int, wanted: Callable[[Recipe], bool]) -> list[Recipe]:
    """The first recipes of a cover. A smaller count gives the beginning of the same list."""
    return list(islice(cover(seed, wanted), count))


def cover(seed: int, wanted: Callable[[Recipe], bool]) -> Iterator[Recipe]:
    """Takes, of each handful of drawn recipes, the one with the most pairs that did not occur yet."""
    rng = random.Random(seed)
    candidates = (recipe for recipe in drawn(rng) if wanted(recipe))
    seen: set[Pair] = set()
    while True:
        best = max(islice(candidates, CANDIDATES), key=lambda recipe: len(pairs(recipe) - seen))
        seen |= pairs(best)
        yield best


def pairs(recipe: Recipe) -> set[Pair]:
    """The pairs of values of one recipe. A spelling is a value of its fault."""
    values = [(name, getattr(recipe, name)) for name in _DIMENSIONS if name != "spelling"]
    values.append(("spelling", f"{recipe.fault}/{recipe.spelling}"))
    return set(combinations(sorted(values), 2))


def share_of_pairs(recipes: list[Recipe], seed: int = 0, draws: int = 20000) -> float:
    """Share of the pairs in a large random draw that these recipes contain."""
    rng = random.Random(seed)
    possible = set().union(*(pairs(recipe) for recipe in islice(drawn(rng), draws)))
    return len(possible & set().union(*map(pairs, recipes))) / len(possible)
