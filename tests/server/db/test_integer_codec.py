"""Steps and times of a segment come back exactly."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ammeter_server.db.integer_codec import pack_integers, unpack_integers


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.int64, st.integers(1, 50), elements=st.integers(0, 2**63 - 1)))
def test_steps_and_times_come_back_whole_and_in_part(numbers: np.ndarray) -> None:
    packed = pack_integers(np.sort(numbers))
    every = unpack_integers(packed, len(numbers))
    assert np.sort(numbers).tolist() == every.tolist()
    some = np.arange(len(numbers) - 1, -1, -2)
    assert every[some].tolist() == unpack_integers(packed, len(numbers), some).tolist()


def test_steps_without_a_gap_take_18_bytes() -> None:
    assert 18 == len(pack_integers(np.arange(10**6, 10**6 + 4096)))
