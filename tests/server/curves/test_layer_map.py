from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from sqlalchemy import delete

from ammeter.wire.columns import ABSENT, Floats, Ints, measured
from ammeter.wire.frames import Schema, Tensor
from ammeter_server.curves.heatmap import ranges_of
from ammeter_server.curves.layer_map import NEVER, Cells, LifeStat, aligned
from ammeter_server.curves.stat_summary import pack_summary, summarize_stat, unpack_summary
from ammeter_server.db import Store
from ammeter_server.db.step_tables import SUMMARY_PART, columns
from ammeter_server.maintenance.compaction import compact
from tests.server.keeping import Fed, database, shown

NAMES = [f"t{number}" for number in range(12)]
SCHEMA = Schema(("loss",), ("grad.norm", "grad.absmax"), tuple(Tensor(name, (4,), "float32") for name in NAMES))
STATS = ("grad.norm", "grad.absmax")
LONG = 24_000


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with database(request.param, tmp_path_factory.mktemp("map")) as store:
        yield store


@pytest.fixture(scope="module")
def long(store: Store) -> Fed:
    """Segments, with blocks behind them; tensors of every kind, with Inf and NaN here and there."""
    fed = Fed(store, SCHEMA)
    fed.feed(numbers(LONG), 500)
    compact(store, fed.run, fed.stream, "me")
    return fed


def numbers(rows: int) -> Floats:
    chance = np.random.default_rng(4)
    values = chance.standard_normal((SCHEMA.width, rows)).astype(np.float32)
    norms = values[SCHEMA.span("grad.norm")]
    norms[1, np.arange(rows) % 10 != 0] = ABSENT
    norms[2] = ABSENT
    norms[3, chance.integers(0, rows, 20)] = np.nan
    norms[4] = -0.0
    norms[5] = np.nan
    norms[6, [5, 511, 512, 4095, 4096, rows - 1]] = np.inf, -np.inf, np.nan, np.nan, -np.inf, np.inf
    norms[7, : rows // 2] = ABSENT
    norms[8, rows // 3 : rows // 3 + 3000] = np.round(norms[8, rows // 3 : rows // 3 + 3000])
    norms[9, ::2] = 3.4e38
    values[SCHEMA.span("grad.absmax")][:, np.arange(rows) % 100 != 7] = ABSENT
    values[SCHEMA.span("grad.absmax")][3, 107] = np.nan
    return values


def read(fed: Fed, stat: str, span: tuple[int, int], cells: int, lowest: bool, to: int) -> tuple[Ints, Cells]:
    life = LifeStat(fed.store, fed.run, fed.stream, stat, 0, *span)
    life.read_summaries(to)
    edges = aligned(ranges_of(*span, cells), life.buckets())
    read_cells = Cells(len(NAMES), edges, lowest)
    life.add_to(read_cells, NAMES)
    return edges, read_cells


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("to", [NEVER, 9000, -1], ids=["summaries", "some summaries", "every value"])
@pytest.mark.parametrize("stat", STATS)
@pytest.mark.parametrize(("span", "cells"), [((0, LONG - 1), 37), ((5000, 5004), 10), ((3000, 21_111), 1000)])
def test_each_cell_has_the_extreme_of_its_steps_or_the_first_that_is_no_number_and_its_step(
    long: Fed, stat: str, span: tuple[int, int], cells: int, lowest: bool, to: int
) -> None:
    edges, read_cells = read(long, stat, span, cells, lowest, to)
    values = np.concatenate([view.values for view in long.fed], axis=1)[SCHEMA.span(stat)]
    assert (span[0], span[1] + 1) == (edges[0], edges[-1])
    assert len(edges) <= cells + 1
    for column, (row, at) in zip(values, read_cells.rows(), strict=True):
        parts = [shown(column[begin:end], np.arange(begin, end), lowest) for begin, end in pairwise(edges.tolist())]
        assert [step for _, step in parts] == at.tolist()
        np.testing.assert_array_equal(np.array([value for value, _ in parts], np.float32), row)
        assert [step >= 0 for _, step in parts] == measured(row).tolist()


def test_summaries_read_no_value_of_the_segments_that_they_cover(store: Store) -> None:
    fed = Fed(store, SCHEMA)
    fed.feed(numbers(LONG), 500)
    fed.end()
    compact(store, fed.run, fed.stream, "me")
    before = read(fed, "grad.norm", (0, LONG - 1), 10, False, NEVER)[1].values
    with store.writing() as connection:
        connection.execute(delete(columns).where(columns.c.run == fed.run, columns.c.part < SUMMARY_PART))
    np.testing.assert_array_equal(before, read(fed, "grad.norm", (0, LONG - 1), 10, False, NEVER)[1].values)


def test_segments_of_older_collectors_have_no_summaries_and_are_read_without(store: Store) -> None:
    fed = Fed(store, SCHEMA)
    fed.feed(numbers(LONG), 500)
    compact(store, fed.run, fed.stream, "me")
    with store.writing() as connection:
        connection.execute(delete(columns).where(columns.c.run == fed.run, columns.c.part >= SUMMARY_PART))
    edges, cells = read(fed, "grad.norm", (0, LONG - 1), 37, False, NEVER)
    assert ranges_of(0, LONG - 1, 37).tolist() == edges.tolist()
    np.testing.assert_array_equal(read(fed, "grad.norm", (0, LONG - 1), 37, False, -1)[1].values, cells.values)


def test_a_part_of_the_tensors_is_read_and_an_unknown_one_is_empty(long: Fed) -> None:
    for to in (NEVER, -1):
        life = LifeStat(long.store, long.run, long.stream, "grad.norm", 100, 0, LONG - 1)
        life.read_summaries(to)
        edges = aligned(ranges_of(100, LONG + 99, 20), life.buckets())
        cells = Cells(3, edges, False)
        life.add_to(cells, ["t6", "gone", "t8"])
        (first, at), (_, nowhere), _ = cells.rows()
        assert (np.inf, 105) == (float(first[0]), int(at[0])), "on the axis of the run"
        assert [-1] * (len(edges) - 1) == nowhere.tolist()


def test_a_summary_is_packed_exactly() -> None:
    values = numbers(5000)
    for stat in STATS:
        summary = summarize_stat(values[SCHEMA.span(stat)])
        assert summary is not None
        for array, unpacked in zip(summary, unpack_summary(pack_summary(summary), len(NAMES)), strict=True):
            np.testing.assert_array_equal(array, unpacked)
    assert summarize_stat(np.full((12, 100), ABSENT, np.float32)) is None


def test_where_nothing_was_measured_nothing_is_shown() -> None:
    ((row, at),) = Cells(1, ranges_of(0, 9, 5), False).rows()
    assert [-1] * 5 == at.tolist()
    assert (row.view(np.uint32) == ABSENT.view(np.uint32)).all()
