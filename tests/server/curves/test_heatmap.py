from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ammeter.wire.columns import ABSENT, measured
from ammeter_server.curves.heatmap import expanded, headroom_of, ranges_of


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


@pytest.mark.parametrize(
    ("packed", "order"),
    [
        ([0, 4], [0, 1, 2, 3]),
        ([3, 1, 0, 2, 2, 1], [3, 0, 1, 2]),
        ([2, 2], [2, 3, 0, 1]),
        ([], None),
        (None, None),
        ([0], None),
        ([0, 5], None),
        ([0, 2, 1, 2], None),
        ([-1, 2], None),
        ([4, 1], None),
        ([0, 10**18], None),
        ([0, 0], None),
        ([0, True], None),
        ([0, "4"], None),
        ([0.0, 4], None),
    ],
    ids=repr,
)
def test_an_order_is_expanded_if_it_has_no_tensor_twice(packed: Any, order: list[int] | None) -> None:
    assert order == expanded(packed, 4)
