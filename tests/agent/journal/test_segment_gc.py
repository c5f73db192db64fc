"""Closed segments are thinned, dropped and moved while the stream is read."""

from __future__ import annotations

import pytest

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.frames import Event, Lost, Steps
from tests.agent.journal.journals import contiguous, event, frames, recorded, row


def test_a_thinned_segment_keeps_every_tenth_row_and_all_else_and_tells_what_went(writer: Journal) -> None:
    for step in range(60):
        writer.append(row(step))
        if step % 7 == 0:
            writer.append(event(step))
    before, closed = recorded(writer.folder), journal.segments(writer.folder)[:-1]
    for _, path in closed:
        size = path.stat().st_size
        journal.thin(path, 10)
        assert path.stat().st_size < size
    after = recorded(writer.folder)
    thinned = sum(frame.steps for frame in after if isinstance(frame, Lost))
    assert [frame for frame in before if isinstance(frame, Event)] == [f for f in after if isinstance(f, Event)]
    assert 60 == len([frame for frame in after if isinstance(frame, Steps)]) + thinned
    assert thinned > 30
    assert all(row(step) in after for step in range(0, 60, 10))
    assert contiguous(writer.folder)


@pytest.mark.parametrize("keep", [10, 0])
def test_reading_from_any_offset_of_a_thinned_segment_yields_the_same_frames(writer: Journal, keep: int) -> None:
    for step in range(60):
        writer.append(row(step))
        if step % 9 == 0:
            writer.append(event(step))
    for _, path in journal.segments(writer.folder)[:-1]:
        journal.thin(path, keep)
    entries = list(journal.read(writer.folder))
    for index, entry in enumerate(entries):
        assert entries[index:] == list(journal.read(writer.folder, entry.begin))
        inside = list(journal.read(writer.folder, entry.begin + 1))
        assert (entry.begin + 1, entry.end, entry.frame) == (inside[0].begin, inside[0].end, inside[0].frame)
        assert entries[index + 1 :] == inside[1:]


def test_thinning_again_leaves_one_lost_frame_per_stretch(writer: Journal) -> None:
    for step in range(20):
        writer.append(row(step))
    _, path = journal.segments(writer.folder)[0]
    rows = len([frame for frame in frames(writer.folder) if isinstance(frame, Steps)])
    in_first = [e for e in journal.read(writer.folder) if e.end <= journal.segments(writer.folder)[1][0]]
    journal.thin(path, 10)
    journal.thin(path, 0)
    lost = [frame for frame in recorded(writer.folder) if isinstance(frame, Lost)]
    assert [Lost("journal-thinned", len(in_first) - 1, 0, in_first[1].begin, in_first[-1].end)] == lost
    assert rows == len([f for f in frames(writer.folder) if isinstance(f, Steps)]) + lost[0].steps


def test_a_dropped_segment_is_counted_in_one_frame(writer: Journal) -> None:
    for step in range(40):
        writer.append(row(step))
        writer.append(event(step))
    (start, path), (end, _) = journal.segments(writer.folder)[:2]
    inside = [entry.frame for entry in journal.read(writer.folder) if entry.end <= end]
    journal.thin(path, 10)
    journal.drop(path, end)
    steps, events = (sum(isinstance(frame, kind) for frame in inside) for kind in (Steps, Event))
    assert Lost("journal-cap", steps, events, start, end) == frames(writer.folder)[0]
    assert contiguous(writer.folder)


def test_a_deleted_segment_is_a_hole_that_is_called_deleted(writer: Journal) -> None:
    for step in range(60):
        writer.append(row(step))
    (_, first), (begin, _) = journal.segments(writer.folder)[:2]
    first.unlink()
    assert Lost("journal-deleted", begin=0, end=begin) == frames(writer.folder)[0]
    assert contiguous(writer.folder)
