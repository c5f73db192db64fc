from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ammeter.wire import columns as block
from ammeter.wire.columns import Floats
from ammeter.wire.frames import ABSENT_BITS
from ammeter_server.db import column_codec
from ammeter_server.db.column_codec import BUCKET_VALUES, COLUMNS_PER_PART, ColumnHeader


def stored(values: Floats) -> dict[int, tuple[ColumnHeader, bytes]]:
    """Place -> what is told of the column, and its values, after a way through bytes."""
    found = {}
    for part, (head, data) in column_codec.pack(values):
        for which, told in column_codec.read_head(head, range(COLUMNS_PER_PART)).items():
            found[part * COLUMNS_PER_PART + which] = told, told.few or data[told.data]
    return found


def unpacked(values: Floats) -> Floats:
    found = np.full(values.shape, block.ABSENT, np.float32)
    for place, (_, data) in stored(values).items():
        found[place] = column_codec.unpack(data, values.shape[1])
    return found


PATTERNS = st.one_of(
    st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC00001, 0xFFFFFFFF, 1, ABSENT_BITS]),
)


@settings(max_examples=150, deadline=None)
@given(hnp.arrays(np.uint32, st.tuples(st.integers(1, 20), st.integers(1, 60)), elements=PATTERNS))
def test_every_bit_comes_back(bits: np.ndarray) -> None:
    assert bits.tobytes() == unpacked(bits.view(np.float32)).tobytes()


@pytest.mark.parametrize("rows", [1, BUCKET_VALUES, BUCKET_VALUES + 1, 4096, 30_000])
def test_noise_constants_and_holes_come_back_at_every_length(rows: int) -> None:
    chance = np.random.default_rng(rows)
    values = chance.standard_normal((4, rows)).astype(np.float32)
    values[1] = 65536.0
    values[2, chance.random(rows) < 0.5] = block.ABSENT
    values[3] = np.round(values[3])
    assert values.tobytes() == unpacked(values).tobytes()


def test_a_column_that_was_never_measured_takes_no_room() -> None:
    values = np.full((3 * COLUMNS_PER_PART, 100), block.ABSENT, np.float32)
    values[COLUMNS_PER_PART + 3, 50] = 1.0
    assert [1] == [part for part, _ in column_codec.pack(values)]
    assert [COLUMNS_PER_PART + 3] == list(stored(values))


def test_the_head_tells_how_many_the_extremes_and_what_is_no_number() -> None:
    values = np.array([[3.0, block.ABSENT, -2.0, np.nan, np.inf, 0.5], [np.nan] * 6], np.float32)
    (told, _), (strange, _) = stored(values).values()
    assert (5, 2, -2.0, 3.0) == told[:4]
    assert (6, 6) == strange[:2]
    assert strange.low > strange.high


def test_few_values_lie_in_the_head_and_many_have_a_coarse_level() -> None:
    values = np.random.default_rng(0).standard_normal((2, 4096)).astype(np.float32)
    values[1, BUCKET_VALUES:] = block.ABSENT
    (many, _), (few, _) = stored(values).values()
    assert (4096 // BUCKET_VALUES, b"") == (len(column_codec.coarse(many.coarse)), many.few)
    assert (b"", BUCKET_VALUES) == (few.coarse, few.measured)
    assert few.few


@settings(max_examples=60, deadline=None)
@given(hnp.arrays(np.uint32, st.integers(BUCKET_VALUES + 1, 4 * BUCKET_VALUES), elements=PATTERNS))
def test_the_coarse_level_has_the_extremes_and_the_first_and_last_of_what_is_no_number(bits: np.ndarray) -> None:
    values = bits.view(np.float32)
    places = np.flatnonzero(block.measured(values))
    values = values[places]
    buckets, found, numbers = column_codec.candidates(column_codec.summarize(values, places))
    assert set(found.tolist()) <= set(places.tolist())
    for bucket, begin in enumerate(range(0, len(values), BUCKET_VALUES)):
        part, at = values[begin : begin + BUCKET_VALUES], places[begin : begin + BUCKET_VALUES]
        mine = buckets == bucket
        finite, odd = part[np.isfinite(part)], at[~np.isfinite(part)]
        if len(finite):
            assert {finite.min(), finite.max()} <= set(numbers[mine].tolist())
        if len(odd):
            assert {odd[0], odd[-1]} <= set(found[mine].tolist())
    true = dict(zip(places.tolist(), values.tolist(), strict=True))
    shown = np.array([true[place] for place in found.tolist()], np.float32)
    assert np.array_equal(shown, numbers, equal_nan=True)
