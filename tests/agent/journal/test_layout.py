"""Folders are private, links are not followed, and small files of a stream are read safely."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ammeter import journal
from ammeter.journal import Journal
from tests.agent.journal.journals import HELLO, recorded, row


def test_the_folder_is_private_and_no_symlink_is_followed(tmp_path: Path) -> None:
    folder = journal.private_folder(tmp_path / "stream")
    assert 0o700 == folder.stat().st_mode & 0o777
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(PermissionError, match="is a symlink"):
        Journal(tmp_path / "link")


def test_the_acknowledged_offset_is_kept_and_an_unreadable_one_counts_as_none(writer: Journal) -> None:
    assert 0 == writer.acknowledged()
    journal.acknowledge(writer.folder, 1_234)
    assert 1_234 == writer.acknowledged()
    (writer.folder / "ack").write_text("x")
    assert 0 == writer.acknowledged()


def test_the_streams_of_a_run_are_those_with_a_lock_file(tmp_path: Path) -> None:
    opened = [Journal(tmp_path / name) for name in ("b", "a")]
    (tmp_path / "no stream").mkdir()
    assert [tmp_path / "a", tmp_path / "b"] == journal.streams(tmp_path)
    for writer in opened:
        writer.close()


def test_nothing_is_read_or_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    folder = tmp_path / "stream"
    writer = Journal(folder)
    writer.hello(HELLO)
    writer.append(row(0))
    writer.close()
    for name in (f"{journal.end_of(folder):020d}.seg", "ack.tmp"):
        (folder / name).symlink_to(victim)
    assert [row(0)] == recorded(folder)
    assert journal.end_stream(folder, 1)
    with pytest.raises(OSError, match="symbolic links"):
        journal.acknowledge(folder, 7)
    assert b"precious" == victim.read_bytes()


@pytest.mark.parametrize("name", ["alive", "hot", "ack", "terminated"])
def test_a_link_or_a_pipe_in_the_place_of_a_note_is_as_good_as_none(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    writer = Journal(folder)
    writer.hello(HELLO)
    writer.append(row(0))
    writer.close()
    held = journal.lock(tmp_path / "elsewhere")
    assert held is not None
    for make in (lambda path: path.symlink_to(tmp_path / "elsewhere"), os.mkfifo):
        (tmp_path / "elsewhere").write_text("4096")
        (folder / name).unlink(missing_ok=True)
        make(folder / name)
        assert not journal.is_alive(folder)
        assert journal.hot_folder(folder) is None
        assert 0 == journal.acknowledged(folder)
        assert [row(0)] == recorded(folder)
    assert journal.is_locked(tmp_path / "elsewhere")
    journal.unlock(held)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o1777])
def test_a_folder_that_was_there_is_used_as_it_is(mode: int, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    assert there == journal.private_folder(there)
    assert mode == there.stat().st_mode & 0o7777


@pytest.mark.parametrize("mode", [0o775, 0o702, 0o777])
def test_a_folder_in_which_others_can_exchange_what_lies_there_is_refused(mode: int, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(mode)
    with pytest.raises(
        PermissionError, match=f"can be written by others .mode {mode:o}.; chmod go-w it, or set AMMETER"
    ):
        journal.private_folder(there)
    assert mode == there.stat().st_mode & 0o7777


def test_a_folder_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        assert 0o700 == journal.private_folder(tmp_path / "made").stat().st_mode & 0o7777
    finally:
        os.umask(before)
