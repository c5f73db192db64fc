"""Near its size limit a journal records fewer frames and counts the others."""

from __future__ import annotations

import itertools
from pathlib import Path

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.frames import Bye, Lost
from tests.agent.journal.journals import HELLO, event, recorded, row


def test_nearing_the_cap_the_writer_keeps_every_tenth_row_then_every_hundredth_then_events_only(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=2_000, cap_bytes=100_000)
    writer.hello(HELLO)
    kept = [step for step in range(20_000) if writer.append(row(step))]
    assert writer.append(event(20_000))
    strides = [after - before for before, after in itertools.pairwise(kept)]
    assert {1, 10, 100} <= set(strides)
    assert kept[-1] < 18_000
    frames = recorded(writer.folder)
    assert 20_000 == len(kept) + sum(frame.steps for frame in frames if isinstance(frame, Lost))
    assert event(20_000) == frames[-1]
    writer.close()


def test_at_the_cap_events_are_counted_instead_of_written_and_the_end_is_told_all_the_same(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=2_000, cap_bytes=20_000)
    writer.hello(HELLO)
    kept = sum(writer.append(event(step)) for step in range(2_000))
    assert writer.append(Bye("closed", 1_999, 7))
    assert 20_000 <= sum(path.stat().st_size for _, path in journal.segments(writer.folder)) < 22_500
    frames = recorded(writer.folder)
    assert 2_000 == kept + sum(frame.events for frame in frames if isinstance(frame, Lost))
    assert Bye("closed", 1_999, 7) == frames[-1]
    writer.close()


def test_rows_are_written_again_once_the_folder_has_room(tmp_path: Path) -> None:
    writer = Journal(tmp_path / "stream", segment_bytes=2_000, cap_bytes=20_000)
    writer.hello(HELLO)
    step = 0
    while any(writer.append(row(step := step + 1)) for _ in range(300)):
        pass
    for _, path in journal.segments(writer.folder)[:-1]:
        path.unlink()
    assert any(writer.append(row(step + more)) for more in range(1, 600))
    writer.close()
