from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest

from ammeter.wire.columns import ABSENT, Floats, Ints, measured
from ammeter_server.curves.curve import CurveQuery
from ammeter_server.curves.heatmap import filled, headroom_of, ranges_of
from ammeter_server.curves.reader import chunks_of
from ammeter_server.db import Store
from ammeter_server.maintenance.compaction import compact
from tests.server.keeping import SCHEMA, Fed, database, numbers

NAMES = ("loss", "grad.norm:t1", "grad.norm:t2", "grad.norm:t3", "grad.absmax:t0", "grad.absmax:t4")
PLACES = (0, 3, 4, 5, 7, 11)
LONG = 24_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with database("sqlite", tmp_path_factory.mktemp("cells")) as store:
        yield store


@pytest.fixture(scope="module")
def long(store: Store) -> Fed:
    """Segments, with blocks behind them, and Inf and NaN here and there."""
    fed = Fed(store)
    values = numbers(SCHEMA, LONG)
    values[0, 7777], values[0, 23_900], values[0, 12_345] = np.inf, -np.inf, np.nan
    values[11, 1000] = 1e30
    fed.feed(values, 500)
    compact(store, fed.run, fed.stream, "me")
    return fed


def cells_of(
    fed: Fed, cells: int, points: int, lowest: bool, first: int = 0, last: int = LONG - 1
) -> list[tuple[Floats, Ints]]:
    edges = ranges_of(first, last, cells)
    pieces = chunks_of(fed.store, fed.run, fed.stream, CurveQuery(NAMES, points, first, last))
    return [filled(pieces.get(name, ()), edges, lowest) for name in NAMES]


def shown(fed: Fed, cells: int, points: int, lowest: bool, first: int = 0, last: int = LONG - 1) -> list[Floats]:
    return [values for values, _ in cells_of(fed, cells, points, lowest, first, last)]


def true(values: Floats, lowest: bool) -> float:
    """What a person has to see of these."""
    there = values[measured(values)]
    odd = there[~np.isfinite(there)]
    if not len(there):
        return float("nan")
    return float(odd[0] if len(odd) else there.min() if lowest else there.max())


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize(("first", "last", "cells"), [(0, LONG - 1, 37), (5000, 5004, 10), (8100, 23_333, 1)])
def test_each_cell_has_the_extreme_of_its_steps_or_what_is_no_number(
    long: Fed, lowest: bool, first: int, last: int, cells: int
) -> None:
    edges = ranges_of(first, last, cells)
    values = np.concatenate([view.values for view in long.fed], axis=1)
    for place, row in zip(PLACES, shown(long, cells, 100_000, lowest, first, last), strict=True):
        parts = [values[place, begin:end] for begin, end in pairwise(edges)]
        np.testing.assert_array_equal(np.array([true(part, lowest) for part in parts], np.float32), row)
        assert [measured(part).any() for part in parts] == measured(row).tolist()


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("points", [100_000, 160], ids=["every value", "coarse levels"])
def test_each_cell_says_at_which_step_its_value_was_measured(long: Fed, lowest: bool, points: int) -> None:
    """Of those that are no number it is the first: of each cell, or of coarse levels of the whole row."""
    edges = ranges_of(0, LONG - 1, 20)
    values = np.concatenate([view.values for view in long.fed], axis=1)
    seen = 0
    for place, (row, at) in zip(PLACES, cells_of(long, 20, points, lowest), strict=True):
        for value, step, begin, end in zip(row, at.tolist(), edges, edges[1:], strict=False):
            if not measured(np.array([value]))[0]:
                assert -1 == step
                continue
            assert begin <= step < end
            np.testing.assert_equal(value, values[place, step])
            odd = np.flatnonzero(measured(values[place, :end]) & ~np.isfinite(values[place, :end]))
            known = odd if points == 160 else odd[odd >= begin]
            assert not len(known) or known[0] < begin or known[0] == step, "the first that is no number"
            seen += 1
    assert seen > 40


def test_of_coarse_levels_every_cell_has_a_value_of_its_own_steps_and_the_extremes_stay(long: Fed) -> None:
    edges = ranges_of(0, LONG - 1, 20)
    values = np.concatenate([view.values for view in long.fed], axis=1)
    for place, row in zip(PLACES, shown(long, 20, 160, False), strict=True):
        column = values[place]
        for value, begin, end in zip(row, edges, edges[1:], strict=False):
            part = column[begin:end]
            assert measured(part).any() == measured(np.array([value]))[0]
            assert np.isnan(value) or value in part
        finite = column[np.isfinite(column)]
        if not len(finite) or not np.isfinite(column[measured(column)]).all():
            continue
        assert finite.max() == row[np.isfinite(row)].max()
    assert np.isnan(shown(long, 20, 160, False)[0]).any()


def test_where_nothing_was_measured_nothing_is_shown() -> None:
    row, at = filled((), ranges_of(0, 9, 5))
    assert 5 == len(row)
    assert [-1] * 5 == at.tolist()
    assert (row.view(np.uint32) == ABSENT.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("first", "last", "most", "edges"),
    [
        (0, 9, 3, [0, 3, 6, 10]),
        (4, 5, 9, [4, 5, 6]),
        (7, 7, 1, [7, 8]),
        (2**62, 2**62 + 1, 2, [2**62, 2**62 + 1, 2**62 + 2]),
    ],
)
def test_ranges_are_equally_long_and_never_shorter_than_a_step(
    first: int, last: int, most: int, edges: list[int]
) -> None:
    assert edges == ranges_of(first, last, most).tolist()


def test_headroom_is_measured_at_the_scale_of_the_same_step() -> None:
    largest = np.array([0.5, 0.5, 0.0, ABSENT, 2.0, np.nan], np.float32)
    at = np.array([3, 10, 11, -1, 12, 20])
    steps, scale = np.array([3, 11, 12, 20]), np.array([2.0, 4.0, 8.0, 8.0], np.float32)
    values, found = headroom_of((largest, at), steps, scale)
    assert [3, -1, -1, -1, 12, -1] == found.tolist()
    assert [True, False, False, False, True, False] == measured(values).tolist()
    assert [pytest.approx(np.log2(65504)), pytest.approx(np.log2(65504) - 4)] == values[[0, 4]].tolist()
    unscaled, _ = headroom_of((largest, at), np.zeros(0, np.int64), np.zeros(0, np.float32))
    assert pytest.approx(np.log2(65504) + 1) == float(unscaled[1])
