from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ammeter_server.curves.downsample import choose

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


def test_along_time_what_came_densely_is_shown_no_finer_than_the_rest() -> None:
    slow, fast = 10**9 * np.arange(1000), 10**12 + 10**3 * np.arange(9000)
    values = np.random.default_rng(0).standard_normal(10_000).astype(np.float32)
    by_time = choose(values, 100, np.concatenate([slow, fast]))
    assert 90 <= (by_time < 1000).sum()
    assert {int(values.argmin()), int(values.argmax()), 9999} <= set(by_time.tolist())
    assert (choose(values, 100) < 1000).sum() <= 12


@given(floats, st.integers(16, 200), st.none() | st.integers(0, 2**62))
def test_never_more_points_than_asked_and_never_another_extreme(
    values: list[float], points: int, seed: int | None
) -> None:
    given_values = np.array(values, np.float32)
    times = None if seed is None else np.random.default_rng(seed).integers(0, seed + 1, len(values))  # in no order
    kept = choose(given_values, points, times)
    shown = given_values[kept]
    assert len(kept) <= points
    assert sorted(set(kept.tolist())) == kept.tolist()
    finite, finite_shown = given_values[np.isfinite(given_values)], shown[np.isfinite(shown)]
    assert len(finite) == 0 or (finite.min(), finite.max()) == (finite_shown.min(), finite_shown.max())
    assert np.isfinite(given_values).all() == np.isfinite(shown).all()
