from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sqlalchemy import update

from ammeter.wire.columns import measured
from ammeter_server.curves import reader
from ammeter_server.curves.curve import Curve, CurveQuery
from ammeter_server.curves.curve_chunk import places_of
from ammeter_server.db import Store
from ammeter_server.db.column_codec import BUCKET_VALUES
from ammeter_server.db.tables import streams
from ammeter_server.maintenance.compaction import compact
from tests.server.keeping import SCHEMA, Fed, database, numbers

NAMES = ("loss", "scale", "grad.norm:t0", "grad.norm:t1", "grad.norm:t3", "grad.absmax:t0", "grad.absmax:t4")
POINTS = 40
LONG = 24_000
"""Rows, of which coarse levels have more than POINTS."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with database("sqlite", tmp_path_factory.mktemp("curves")) as store:
        yield store


@pytest.fixture(scope="module")
def long(store: Store) -> Fed:
    """Segments, with blocks behind them, and spikes and NaN here and there."""
    fed = Fed(store)
    values = numbers(SCHEMA, LONG)
    values[0, 7777], values[0, 23_900], values[0, 12_345] = 99.0, -99.0, np.nan
    fed.feed(values, 500)
    compact(store, fed.run, fed.stream, "me")
    return fed


def read(fed: Fed, points: int, first: int | None = None, last: int | None = None) -> dict[str, Curve]:
    return reader.read(fed.store, fed.run, fed.stream, CurveQuery((*NAMES, "no_such_name"), points, first, last))


def true(fed: Fed, name: str, first: int | None = None, last: int | None = None) -> Curve:
    view = fed.fed[0]
    column = view.values[places_of(SCHEMA, [name])[name]]
    end = len(view) if last is None else last + 1
    there = np.flatnonzero(measured(column[:end]))
    there = there[there >= (first or 0)]
    return Curve(view.steps[there], view.times[there], column[there])


def bits(curve: Curve) -> list[bytes]:
    return [curve.steps.tobytes(), curve.times.tobytes(), curve.values.tobytes()]


@pytest.mark.parametrize(
    ("first", "last"), [(None, None), (4100, 4100), (3000, 9001), (20_500, None), (23_990, 30_000)]
)
def test_where_all_is_shown_it_is_what_was_fed(long: Fed, first: int | None, last: int | None) -> None:
    found = read(long, 100_000, first, last)
    for name, curve in found.items():
        expected = true(long, name, first, last)
        assert bits(expected) == bits(curve), name
        assert curve.complete
    assert "grad.norm:t2" not in found


def test_what_is_thinned_is_a_part_of_what_was_fed_with_its_ends_extremes_and_nans(long: Fed) -> None:
    assert LONG > BUCKET_VALUES * POINTS // 2
    for name, curve in read(long, POINTS).items():
        steps, times, values, _ = true(long, name)
        assert not curve.complete
        assert len(curve.steps) <= POINTS
        assert list(curve.steps) == sorted(set(curve.steps.tolist()))
        at = np.searchsorted(steps, curve.steps)
        assert times[at].tolist() == curve.times.tolist()
        assert np.array_equal(values[at], curve.values, equal_nan=True)
        assert (steps[0], steps[-1]) == (curve.steps[0], curve.steps[-1])
        finite = values[np.isfinite(values)]
        if len(finite):
            assert {finite.min(), finite.max()} <= set(curve.values.tolist())
        assert np.isnan(values).any() == np.isnan(curve.values).any()
    loss = read(long, POINTS)["loss"]
    shown = dict(zip(loss.steps, loss.values, strict=True))
    assert (99.0, -99.0) == (shown[7777], shown[23_900])
    assert np.isnan(shown[12_345])


@pytest.mark.parametrize(("first", "last"), [(1, None), (5000, None), (None, 21_000), (2222, 23_500)])
def test_ends_of_what_is_asked_for_are_kept_where_it_is_thinned(long: Fed, first: int | None, last: int | None) -> None:
    for name, curve in read(long, 16, first, last).items():
        steps, _, values, _ = true(long, name, first, last)
        assert (steps[0], steps[-1]) == (curve.steps[0], curve.steps[-1])
        finite = values[np.isfinite(values)]
        if len(finite):
            assert {finite.min(), finite.max()} <= set(curve.values.tolist())


def test_curves_that_were_measured_in_the_same_rows_share_their_steps(long: Fed) -> None:
    found = read(long, 100_000)
    assert found["loss"].steps is found["scale"].steps
    assert found["loss"].steps is not found["grad.norm:t1"].steps


def test_a_column_that_was_measured_seldom_is_shown_as_finely_as_there_are_points(long: Fed) -> None:
    assert POINTS - 4 <= len(read(long, POINTS)["grad.norm:t1"].steps)


def test_one_step_is_a_curve(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 1), 1)
    assert [0] == read(fed, 16)["loss"].steps.tolist()
    assert {} == read(fed, 16, first=1)


def test_rows_are_found_although_the_collectors_clock_was_wrong_when_the_stream_began(store: Store) -> None:
    fed = Fed(store)
    fed.feed(numbers(SCHEMA, 20), 10)
    for opened in (0, 2**62):
        with store.writing() as connection:
            connection.execute(update(streams).where(streams.c.run == fed.run).values(opened=opened))
        assert list(range(20)) == read(fed, 100)["loss"].steps.tolist()
