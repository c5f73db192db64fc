from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ammeter_server.digits import as_json


def read(values: list[float] | np.ndarray) -> list[float | str]:
    found: list[float | str] = json.loads(as_json(np.asarray(values, np.float32)))
    return found


@settings(max_examples=200, deadline=None)
@given(hnp.arrays(np.uint32, st.integers(1, 40)))
def test_every_float32_is_told_from_every_other(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    for value, told in zip(values.tolist(), read(values), strict=True):
        if math.isfinite(value):
            assert value == np.float32(told)
            assert math.copysign(1, value) == math.copysign(1, float(told))
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
