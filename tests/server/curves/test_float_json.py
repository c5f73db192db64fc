from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ammeter.wire.frames import ABSENT_BITS
from ammeter_server.curves.float_json import VALUES_PER_SLICE, as_json, between_brackets


def read(values: list[float] | np.ndarray) -> list[float | str | None]:
    found: list[float | str | None] = json.loads(as_json(np.asarray(values, np.float32)))
    return found


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.uint32, st.integers(1, 40)))
@example(np.array([ABSENT_BITS, ABSENT_BITS ^ 1, ABSENT_BITS ^ 2**31], np.uint32))
def test_every_float32_is_told_from_every_other(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    for word, value, told in zip(bits.tolist(), values.tolist(), read(values), strict=True):
        if word == ABSENT_BITS:
            assert told is None
        elif math.isfinite(value):
            assert isinstance(told, float)
            assert value == np.float32(told)
            assert math.copysign(1, value) == math.copysign(1, told)
        else:
            assert {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN") == told


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 65536.0, 0.5, 1e10, 2.0**-24, 3.1e9])
def test_what_has_nine_digits_is_told_as_it_is(value: float) -> None:
    assert [pytest.approx(value, rel=1e-8)] == read([value])


def test_powers_of_ten_and_the_ends_of_float32_are_right() -> None:
    values = [float(f"1e{exponent}") for exponent in range(-45, 39)] + [1.4e-45, 3.4028235e38, -1.1754944e-38]
    assert np.array(values, np.float32).tolist() == np.array(read(values), np.float32).tolist()


def test_no_values_are_an_empty_list() -> None:
    assert b"[]" == as_json(np.zeros(0, np.float32))
    assert [] == between_brackets([])


def test_many_arrays_are_told_as_each_of_them_alone() -> None:
    chance = np.random.default_rng(0)
    arrays = [chance.standard_normal(size).astype(np.float32) for size in (3, 0, VALUES_PER_SLICE, 1, 700)]
    arrays[3][0] = np.nan
    assert [as_json(array) for array in arrays] == [b"[" + text + b"]" for text in between_brackets(arrays)]
