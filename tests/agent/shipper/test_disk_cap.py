"""A stream's folder stays under its cap, and what goes is what matters least."""

from __future__ import annotations

from pathlib import Path

from ammeter import journal
from ammeter.journal import Journal
from ammeter.shipper.disk_cap import SegmentCleaner
from ammeter.wire.frames import Event, Lost, Steps
from tests.agent.ship_parts import event, row, writer

CAP = 40_000


def filled(run_folder: Path, rows: int) -> Journal:
    opened = writer(run_folder, segment_bytes=5_000)
    for step in range(rows):
        opened.append(row(step))
        if step % 10 == 5:
            opened.append(event(step))
    return opened


def used(folder: Path) -> int:
    return sum(path.stat().st_size for _, path in journal.segments(folder))


def kept(folder: Path, kind: type) -> int:
    return sum(isinstance(entry.frame, kind) for entry in journal.read(folder))


def lost(folder: Path) -> tuple[int, int]:
    """(steps, events) told as lost."""
    found = [entry.frame for entry in journal.read(folder) if isinstance(entry.frame, Lost)]
    return sum(frame.steps for frame in found), sum(frame.events for frame in found)


def test_below_the_cap_nothing_goes(tmp_path: Path) -> None:
    opened = filled(tmp_path, 100)
    before = list(journal.read(opened.folder))
    SegmentCleaner(opened.folder, CAP).clean(opened.offset, opened.offset)
    assert before == list(journal.read(opened.folder))
    opened.close()


def test_what_the_collector_has_goes_first_oldest_first(tmp_path: Path) -> None:
    opened = filled(tmp_path, 400)
    SegmentCleaner(opened.folder, CAP).clean(opened.offset, opened.offset)
    assert used(opened.folder) <= 0.45 * CAP
    assert (0, 0) == lost(opened.folder)
    rows = [entry.frame.step for entry in journal.read(opened.folder) if isinstance(entry.frame, Steps)]
    assert list(range(rows[0], 400)) == rows
    opened.close()


def test_undelivered_rows_are_thinned_until_the_folder_is_small_enough(tmp_path: Path) -> None:
    opened = filled(tmp_path, 400)
    SegmentCleaner(opened.folder, 50_000).clean(0, 0)
    assert 20_000 < used(opened.folder) <= 0.5 * 50_000
    assert all(row(step) in [entry.frame for entry in journal.read(opened.folder)] for step in range(0, 400, 10))
    steps, events = lost(opened.folder)
    assert (400, 40) == (kept(opened.folder, Steps) + steps, kept(opened.folder, Event))
    assert 0 == events
    opened.close()


def test_then_all_rows_go_and_events_last_of_all(tmp_path: Path) -> None:
    opened = filled(tmp_path, 400)
    cleaner = SegmentCleaner(opened.folder, 8_000)
    cleaner.clean(0, 0)
    steps, events = lost(opened.folder)
    assert events > 0
    assert (400, 40) == (kept(opened.folder, Steps) + steps, kept(opened.folder, Event) + events)
    assert used(opened.folder) <= 0.95 * 8_000
    before = [path.stat().st_mtime_ns for _, path in journal.segments(opened.folder)]
    cleaner.clean(0, 0)
    assert before == [path.stat().st_mtime_ns for _, path in journal.segments(opened.folder)]
    opened.close()


def test_what_may_be_on_its_way_is_not_thinned(tmp_path: Path) -> None:
    opened = filled(tmp_path, 400)
    reached = journal.segments(opened.folder)[3][0] + 10
    before = list(journal.read(opened.folder, limit_bytes=reached))
    SegmentCleaner(opened.folder, 8_000).clean(0, reached)
    assert before == list(journal.read(opened.folder, limit_bytes=reached))
    opened.close()


def test_closed_segments_leave_tmpfs_and_at_the_end_all_of_it_does(tmp_path: Path) -> None:
    hot = tmp_path / "hot"
    opened = Journal(tmp_path / "stream", hot=hot / "stream", hot_bytes=1_000_000, segment_bytes=2_000)
    for step in range(100):
        opened.append(row(step))
    before = list(journal.read(opened.folder))
    cleaner = SegmentCleaner(opened.folder, CAP)
    cleaner.clean(0, 0)
    places = [path.parent for _, path in journal.segments(opened.folder)]
    assert [opened.folder] * (len(places) - 1) + [hot / "stream"] == places
    opened.close()
    cleaner.finish()
    cleaner.finish()
    assert not hot.exists()
    assert before == list(journal.read(opened.folder))
