from __future__ import annotations

import math
import warnings

import numpy as np
import numpy.typing as npt
import pytest

from ammeter.recording.row import Layout, Row
from ammeter.tensors import async_copy
from ammeter.wire.columns import measured
from ammeter.wire.frames import ABSENT_BITS, SCALARS, STATS, Schema, Tensor

SCHEMA = Schema(stats=tuple(STATS), tensors=(Tensor("a", (2,), "float32"), Tensor("b", (3,), "float32")))
BOTH = np.array([0, 1])


def _values(row: Row) -> npt.NDArray[np.float32]:
    return np.frombuffer(row.values(Layout(SCHEMA)), "<f4")


def test_an_empty_row_has_no_columns_behind_the_scalars_and_measured_nothing() -> None:
    values = _values(Row(0))
    assert len(SCALARS) == len(values)
    assert not measured(values).any()


def test_each_number_stands_in_its_column() -> None:
    row = Row(3)
    row.scalars["loss"] = 0.5
    row.fill("grad.zeros", np.array([1]), np.array([7]))
    values = _values(row)
    assert SCHEMA.span("grad.zeros").stop == len(values)
    assert 0.5 == values[SCHEMA.scalars.index("loss")]
    assert [False, True] == measured(values[SCHEMA.span("grad.zeros")]).tolist()
    assert 7.0 == values[SCHEMA.span("grad.zeros")][1]
    assert 2 == measured(values).sum()


def test_several_readings_of_one_stat_fill_it_together() -> None:
    row = Row(0)
    row.fill("grad.norm", np.array([1]), np.array([2.0]))
    row.fill("grad.norm", np.array([0]), np.array([1.0]))
    assert [1.0, 2.0] == _values(row)[SCHEMA.span("grad.norm")].tolist()


def test_what_is_finite_stays_finite_and_what_is_not_stays_what_it_is() -> None:
    row = Row(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row.fill("grad.norm", BOTH, np.array([1e300, -1e300]))
        row.fill("grad.absmax", BOTH, np.array([math.inf, math.nan]))
        values = _values(row)
    largest = float(np.finfo(np.float32).max)
    assert [largest, -largest] == values[SCHEMA.span("grad.norm")].tolist()
    assert [math.inf, math.nan] == pytest.approx(values[SCHEMA.span("grad.absmax")].tolist(), nan_ok=True)


def test_a_nan_with_the_bits_of_absent_is_still_a_measured_nan() -> None:
    row = Row(0)
    row.fill("grad.norm", BOTH, np.array([ABSENT_BITS, 0x7FC00000], np.uint32).view(np.float32))
    norms = _values(row)[SCHEMA.span("grad.norm")]
    assert np.isnan(norms).all()
    assert measured(norms).all()


def test_a_scalar_beyond_float32_is_infinite() -> None:
    row = Row(0)
    row.scalars["loss"] = 1e300
    with np.errstate(all="ignore"):
        assert math.inf == _values(row)[SCHEMA.scalars.index("loss")]


def test_a_row_is_ready_when_everything_has_arrived() -> None:
    class Later:
        on_host = arrived = False

        def ready(self) -> bool:
            return self.arrived

        def array(self) -> async_copy.Array:
            return np.array([1.0], np.float32)

        def number(self) -> float:
            return 1.0

    row, late = Row(0), Later()
    row.later("scale", async_copy.number(2.0))
    assert row.ready()
    row.later("scale", late)
    assert not row.ready()
    late.arrived = True
    assert row.ready()
    assert [2.0, 1.0] == [float(array[0]) for array in row.arrived("scale")]
    assert [] == row.arrived("nothing")
