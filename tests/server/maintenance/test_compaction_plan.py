"""Which of the blocks that wait become segments."""

from __future__ import annotations

from dataclasses import dataclass

from ammeter_server.maintenance.compaction import (
    MAX_SEGMENT_ROWS,
    MIN_SEGMENT_ROWS,
    MIN_SMALL_BLOCKS,
    plan,
    rows_of_segment,
)


@dataclass(frozen=True)
class Waits:
    first_step: int
    rows: int
    columns: int = 14
    schema: str = "a"


def blocks(*rows: int, columns: int = 14, schema: str = "a") -> list[Waits]:
    return [Waits(sum(rows[:number]), count, columns, schema) for number, count in enumerate(rows)]


def planned(waits: list[Waits], ended: bool = False) -> list[tuple[str, list[int]]]:
    return [(job.into, [waiting.rows for waiting in job.blocks]) for job in plan(waits, ended)]


def test_a_segment_is_made_when_enough_rows_wait() -> None:
    assert [] == planned(blocks(*[1000] * 4))
    assert [("segments", [1000] * 5)] == planned(blocks(*[1000] * 5))
    assert [("segments", [1000] * 5)] == planned(blocks(*[1000] * 7))


def test_a_stream_that_has_ended_leaves_few_rows_as_one_block() -> None:
    assert [("segments", [1000, 100])] == planned(blocks(1000, 100), ended=True)
    assert [("block", [900, 100])] == planned(blocks(900, 100), ended=True)
    assert [] == planned(blocks(MIN_SEGMENT_ROWS - 1), ended=True)


def test_small_blocks_are_joined_when_many_wait() -> None:
    assert [] == planned(blocks(*[1] * (MIN_SMALL_BLOCKS - 1)))
    assert [("block", [1] * MIN_SMALL_BLOCKS)] == planned(blocks(100, *[1] * MIN_SMALL_BLOCKS))
    assert [("block", [31] * MIN_SMALL_BLOCKS)] == planned(blocks(*[31] * MIN_SMALL_BLOCKS))
    assert [] == planned(blocks(*[32] * MIN_SMALL_BLOCKS))


def test_rows_before_other_columns_become_a_segment_however_few() -> None:
    assert [("segments", [5, 5])] == planned([*blocks(5, 5), Waits(10, 5, 15, "b")])


def test_wide_streams_have_shorter_segments_and_blocks_are_not_joined_without_end() -> None:
    assert [MAX_SEGMENT_ROWS, 3333, MIN_SEGMENT_ROWS, 160] == [
        rows_of_segment(width) for width in (40, 1200, 10_000, 100_000)
    ]
    assert [] == planned(blocks(*[10] * 16, columns=20_000))
    assert [[10] * 10] * 2 == [rows for _, rows in planned(blocks(*[10] * 20, columns=20_000), ended=True)]
