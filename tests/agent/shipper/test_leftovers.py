"""A run moves to disk what earlier runs of this user left on tmpfs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.environment import identity
from ammeter.journal import Journal, layout, writer
from ammeter.shipper.leftovers import recover_leftovers
from tests.agent.ship_parts import RUN, STREAM, hello, row


def left_behind(tmp_path: Path, name: str) -> tuple[Path, Path]:
    """(the folder, the folder on tmpfs) of a stream of an earlier run whose mirror was killed."""
    run_folder = journal.private_folder(tmp_path / name)
    hot = journal.private_folder(tmp_path / "tmpfs" / name) / STREAM
    opened = Journal(run_folder / STREAM, hot=hot, hot_bytes=100_000)
    opened.hello(hello(host=identity.host()))
    opened.append(row(0))
    opened.close()
    return opened.folder, hot


@pytest.fixture
def now(tmp_path: Path, run_folder: Path) -> Iterator[Path]:
    """The folder of a run that begins later."""
    hot = journal.private_folder(tmp_path / "tmpfs" / RUN) / STREAM
    opened = Journal(run_folder / STREAM, hot=hot, hot_bytes=100_000)
    opened.hello(hello(host=identity.host()))
    yield run_folder
    assert hot.exists()
    opened.close()


def test_the_next_run_brings_home_what_an_earlier_one_left_on_tmpfs(now: Path, tmp_path: Path) -> None:
    folder, hot = left_behind(tmp_path, "earlier")
    before = [entry.frame for entry in journal.read(folder)]
    recover_leftovers(now)
    assert not hot.parent.exists()
    assert 2 == len(before)
    assert before == [entry.frame for entry in journal.read(folder)]


def test_what_somebody_still_writes_or_ships_or_waits_for_stays(now: Path, tmp_path: Path) -> None:
    for number, path in enumerate(("alive", "shipper", f"../witness.{identity.host()}.1")):
        folder, hot = left_behind(tmp_path, f"earlier{number}")
        held = journal.lock(folder / path)
        assert held is not None
        recover_leftovers(now)
        assert hot.exists()
        journal.unlock(held)


def test_a_stream_that_begins_at_this_moment_stays(now: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_and_recover(path: Path, content: bytes) -> None:
        layout.replace(path, content)
        recover_leftovers(now)

    monkeypatch.setattr(writer, "replace", replace_and_recover)
    folder = journal.private_folder(tmp_path / "beginning") / STREAM
    hot = journal.private_folder(tmp_path / "tmpfs" / "beginning") / STREAM
    opened = Journal(folder, hot=hot, hot_bytes=100_000)
    opened.close()
    assert not opened.ring_error
    assert hot == journal.hot_folder(folder)
    assert hot.exists()


def test_what_has_no_home_any_more_is_deleted_after_a_week(now: Path, tmp_path: Path) -> None:
    folder, hot = left_behind(tmp_path, "earlier")
    shutil.rmtree(folder.parent)
    recover_leftovers(now)
    assert hot.exists()
    long_ago = time.time() - 8 * 86_400
    for path in (*hot.iterdir(), hot):
        os.utime(path, (long_ago, long_ago))
    recover_leftovers(now)
    assert not hot.parent.exists()
