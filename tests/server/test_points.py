from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ammeter_server.points import choose

floats = st.lists(st.sampled_from([0.0, 1.0, -2.5, 7.0, 1e30, np.nan, np.inf, -np.inf]), min_size=1, max_size=600)


def test_few_values_are_all_shown() -> None:
    assert [0, 1, 2] == choose(np.array([1, 2, 3], np.float32), 16).tolist()


def test_a_single_spike_and_a_single_dip_stay() -> None:
    values = np.ones(10_000, np.float32)
    values[6789], values[1234] = 50, -50
    kept = choose(values, 100)
    assert {0, 1234, 6789, 9999} <= set(kept.tolist())
    assert len(kept) <= 100


def test_a_single_nan_stays() -> None:
    values = np.ones(10_000, np.float32)
    values[4321] = np.nan
    assert 4321 in choose(values, 100)


@given(floats, st.integers(16, 200))
def test_never_more_points_than_asked_and_never_another_extreme(values: list[float], points: int) -> None:
    given_values = np.array(values, np.float32)
    kept = choose(given_values, points)
    shown = given_values[kept]
    assert len(kept) <= points
    assert sorted(set(kept.tolist())) == kept.tolist()
    finite, finite_shown = given_values[np.isfinite(given_values)], shown[np.isfinite(shown)]
    assert len(finite) == 0 or (finite.min(), finite.max()) == (finite_shown.min(), finite_shown.max())
    assert np.isfinite(given_values).all() == np.isfinite(shown).all()
