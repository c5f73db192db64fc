"""What one request carries: every row, event and hole of a stretch of journal, once and in order."""

from __future__ import annotations

import msgspec
import pytest

from ammeter.journal import Entry
from ammeter.shipper.packing import MAX_ROWS, build_payload, count_fitting
from ammeter.wire.columns import unpack
from ammeter.wire.frames import Block, Frame, Hello, Lost, Schema, Steps
from tests.agent.ship_parts import SCHEMA, event, hello, row


def entries(*frames: Frame) -> list[Entry]:
    return [Entry(100 * index, 100 * index + 100, frame) for index, frame in enumerate(frames)]


def test_rows_in_a_row_become_one_block_and_events_stay_between() -> None:
    made = build_payload(entries(hello(), row(0), row(1), event(1), row(2)), None)
    first, block, happened, last = made.items
    assert hello() == first
    assert event(1) == happened
    assert isinstance(block, Block)
    assert isinstance(last, Block)
    assert (2, 0, 1, SCHEMA.id) == (block.rows, block.first_step, block.last_step, block.schema)
    assert row(1).values == unpack(block, SCHEMA).values[:, 1].tobytes()
    assert [(0, 100), (100, 300), (300, 400), (400, 500)] == made.ranges


def test_a_hole_becomes_a_gap_and_does_not_cut_a_block() -> None:
    hole = Lost("journal-thinned", 9, 0, 50, 200)
    made = build_payload(entries(row(0), hole, row(10)), SCHEMA)
    assert [Lost("journal-thinned", 9, 0, 100, 200)] == made.gaps
    assert [2] == [item.rows for item in made.items if isinstance(item, Block)]
    assert [(0, 300)] == made.ranges


def test_a_loss_without_a_range_is_an_item() -> None:
    made = build_payload(entries(Lost("journal-cap", 9)), SCHEMA)
    assert [Lost("journal-cap", 9)] == made.items
    assert [] == made.gaps


def test_a_refused_frame_is_declared_and_counted() -> None:
    made = build_payload(entries(row(0), row(1), event(1)), SCHEMA, {100, 200})
    assert [Lost("rejected", 1, 0, 100, 200), Lost("rejected", 0, 1, 200, 300)] == made.gaps
    assert [1] == [item.rows for item in made.items if isinstance(item, Block)]


def test_rows_behind_a_refused_hello_are_gaps_because_nobody_knows_their_columns() -> None:
    made = build_payload(entries(row(0), hello(), row(1)), SCHEMA, {100})
    assert [Lost("rejected", 0, 0, 100, 200), Lost("no-schema", 1, 0, 200, 300)] == made.gaps
    assert [(0, 100)] == made.ranges


@pytest.mark.parametrize("values", [bytes(61), bytes(64)], ids=["half a float", "a column too many"])
def test_a_row_that_does_not_fit_its_columns_is_a_gap(values: bytes) -> None:
    made = build_payload(entries(Steps(0, 0, values), row(1)), SCHEMA)
    assert [Lost("no-schema", 1, 0, 0, 100)] == made.gaps
    assert [(100, 200)] == made.ranges


def test_steps_that_go_back_begin_a_new_block() -> None:
    made = build_payload(entries(row(5), row(6), row(2)), SCHEMA)
    assert [2, 1] == [item.rows for item in made.items if isinstance(item, Block)]


def test_a_request_carries_at_most_a_thousand_rows() -> None:
    assert MAX_ROWS == count_fitting(entries(*(row(step) for step in range(MAX_ROWS + 5))), SCHEMA, 10**9)


def test_a_request_unpacks_to_at_most_eight_megabytes() -> None:
    wide = Schema(scalars=tuple(map(str, range(2**19))))
    wide_hello: Hello = msgspec.structs.replace(hello(), schema=wide)
    assert 4 == count_fitting(entries(wide_hello, *(Steps(step, 0, b"") for step in range(9))), None, 10**9)


def test_a_request_carries_at_least_one_frame_and_no_more_journal_than_told() -> None:
    several = entries(row(0), row(1), row(2))
    assert [1, 1, 2, 3] == [count_fitting(several, SCHEMA, most) for most in (1, 100, 200, 300)]
    assert 0 == count_fitting([], SCHEMA, 100)
