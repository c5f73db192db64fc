"""Packed blocks are bit-exact, and a hostile one is refused before it costs anything."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from ammeter.wire import columns
from ammeter.wire.columns import ABSENT, MAX_BLOCK_BYTES, BadBlock, View, join, measured, pack, unpack, unpack_all, view
from ammeter.wire.frames import Block, Event, Hello, Schema, Steps, Tensor

SCHEMA = Schema(
    scalars=("scale", "loss"),
    stats=("grad.norm", "grad.nans"),
    tensors=(Tensor("a", (2, 3), "float32"), Tensor("b", (), "f")),
)
NAN = float("nan")


def row(step: int, *values: float, time: int | None = None) -> Steps:
    return Steps(step, step * 10 if time is None else time, struct.pack(f"<{len(values)}f", *values))


def some_rows() -> View:
    return view(SCHEMA, [row(0, 1, 2, 3, 4, 5, 6), row(1, 7, 8), row(5, NAN, -0.0, 1e-45)])


def bits(values: columns.Floats) -> list[int]:
    return list(values.view(np.uint32).ravel())


def test_a_view_has_the_rows_as_columns_and_what_is_left_out_is_absent() -> None:
    rows = some_rows()
    assert [0, 1, 5] == list(rows.steps)
    assert [0, 10, 50] == list(rows.times)
    assert [1, 7] == list(rows.scalar("scale")[:2])
    assert [3, 4] == list(rows.stat("grad.norm")[:, 0])
    assert [5, 6] == list(rows.stat("grad.nans")[:, 0])
    assert not measured(rows.stat("grad.norm")[:, 1]).any()


def test_a_nan_that_was_measured_is_not_absent() -> None:
    assert [True, True, True] == list(measured(some_rows().scalar("scale")))
    assert [True, False] == list(measured(np.array([NAN, ABSENT], np.float32)))


def test_a_column_that_the_stream_does_not_have_is_absent_throughout() -> None:
    rows = some_rows()
    assert not measured(rows.scalar("val_loss")).any()
    assert (2, 3) == rows.stat("grad.zeros").shape
    assert not measured(rows.stat("grad.zeros")).any()


def test_the_number_of_elements_is_that_of_the_shape() -> None:
    assert [6, 1] == list(some_rows().numel)


def test_a_row_longer_than_its_schema_is_refused() -> None:
    with pytest.raises(BadBlock, match="step 3 has 7 columns; its schema has 6"):
        view(SCHEMA, [row(3, *range(7))])


def test_parts_come_in_the_order_of_the_journal() -> None:
    event, again = Event("step.skipped", 1, 0), Event("scaler.growth", 5, 0)
    hello = Hello("run", "stream", SCHEMA)
    rows = view(SCHEMA, [row(0, 1), row(1, 1), row(5, 1)], [(0, hello), (2, event), (3, again)])
    told = [list(part.steps) if isinstance(part, View) else part for part in rows.parts()]
    assert [hello, [0, 1], event, [5], again] == told


def test_parts_may_be_only_the_wanted_ones_and_the_rows_stay_together() -> None:
    event, again = Event("step.skipped", 1, 0), Event("scaler.growth", 5, 0)
    hello = Hello("run", "stream", SCHEMA)
    rows = view(SCHEMA, [row(0, 1), row(1, 1), row(5, 1)], [(0, hello), (1, event), (2, again)])
    told = [list(part.steps) if isinstance(part, View) else part for part in rows.parts("scaler.growth", "hello")]
    assert [hello, [0, 1], again, [5]] == told


def test_records_are_python_numbers_row_by_row() -> None:
    first, second, _ = some_rows().records("loss", "scale")
    assert (0, (2.0, 1.0)) == first
    assert (1, (8.0, 7.0)) == second


def test_a_packed_block_unpacks_to_the_same_bits() -> None:
    rows = some_rows()
    packed = pack(rows)
    again = unpack(packed, SCHEMA)
    assert (3, 6, 0, 5) == (packed.rows, packed.columns, packed.first_step, packed.last_step)
    assert bits(rows.values) == bits(again.values)
    assert list(rows.steps) == list(again.steps)
    assert list(rows.times) == list(again.times)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_rows_survive_packing_bit_by_bit(data: st.DataObject) -> None:
    steps = sorted(data.draw(st.lists(st.integers(0, 2**62), min_size=1, max_size=20, unique=True)))
    times = st.integers(-(2**62), 2**62)
    pattern = st.integers(0, 2**32 - 1)
    rows = [
        Steps(step, data.draw(times), struct.pack("<6I", *data.draw(st.lists(pattern, min_size=6, max_size=6))))
        for step in steps
    ]
    before = view(SCHEMA, rows)
    after = unpack(pack(before), SCHEMA)
    assert bits(before.values) == bits(after.values)
    assert list(before.steps) == list(after.steps)
    assert list(before.times) == list(after.times)


def test_blocks_of_one_schema_join_to_one_view() -> None:
    rows = some_rows()
    joined = join(SCHEMA, [rows.rows(0, 1), rows.rows(1, 3)])
    assert bits(rows.values) == bits(joined.values)
    assert list(rows.steps) == list(joined.steps)
    assert 0 == len(join(SCHEMA, []))


def test_several_blocks_unpack_to_one_view() -> None:
    rows = some_rows()
    unpacked = unpack_all([pack(rows.rows(0, 2)), pack(rows.rows(2, 3))], SCHEMA)
    assert bits(rows.values) == bits(unpacked.values)
    assert ([0, 1, 5], [0, 10, 50]) == (list(unpacked.steps), list(unpacked.times))


@pytest.mark.parametrize("number", [0, -1, 2**40])
def test_no_memory_is_allocated_for_several_blocks_of_which_one_declares_too_much(number: int) -> None:
    with pytest.raises(BadBlock, match=f"block has {number} rows"):
        unpack_all([pack(some_rows()), changed(rows=number)], SCHEMA)


def changed(**values: object) -> Block:
    return msgspec.structs.replace(pack(some_rows()), **values)


@pytest.mark.parametrize(
    ("what", "packed"),
    [
        ("block has 7 columns", changed(columns=7)),
        ("block has 0 rows", changed(rows=0)),
        ("block has -1 rows", changed(rows=-1)),
        (f"at most {MAX_BLOCK_BYTES} bytes", changed(rows=2**40)),
        ("contains 0 to 5", changed(first_step=1)),
        ("contains 0 to 5", changed(last_step=7)),
        ("cannot be decompressed", changed(data=b"not zstd")),
        ("block", changed(data=b"")),
        ("block", changed(data=pack(some_rows()).data[:-4])),
        ("block", changed(rows=2)),
        ("block", changed(data=zstandard.compress(b"x" * 10))),
        ("block", changed(data=zstandard.compress(bytes(2**24)))),
    ],
)
def test_a_block_that_does_not_hold_what_it_says_is_refused(what: str, packed: Block) -> None:
    with pytest.raises(BadBlock, match=what):
        unpack(packed, SCHEMA)


def test_steps_that_go_back_are_refused() -> None:
    rows = view(SCHEMA, [row(0, 1), row(9, 1), row(5, 1), row(10, 1)])
    with pytest.raises(BadBlock):
        unpack(pack(rows), SCHEMA)


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), rows=st.integers(-2, 2**33))
def test_no_bytes_at_all_make_unpack_do_anything_but_answer_or_refuse(data: bytes, rows: int) -> None:
    with pytest.raises(BadBlock):
        unpack(changed(data=data, rows=rows), SCHEMA)


def test_a_thousand_rows_of_a_quiet_run_pack_to_less_than_a_third() -> None:
    dice = np.random.default_rng(0)
    norms = np.exp(0.1 * dice.standard_normal((1000, 2)))
    rows = view(SCHEMA, [row(step, 65536, 2 + step / 1e4, *norms[step]) for step in range(1000)])
    assert len(pack(rows).data) < 1000 * (16 + SCHEMA.width * 4) / 3
