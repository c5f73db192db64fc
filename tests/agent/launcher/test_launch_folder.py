"""The launcher's folder exists while the command runs, and contains notes of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ammeter.launcher.launch_folder import LaunchFolder, Note, start_ticks


def test_folders_of_launchers_that_were_killed_are_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ammeter.launcher.launch_folder.SHARED_MEMORY", tmp_path)
    everyone = tmp_path / f"ammeter-launches-{os.geteuid()}"
    first = LaunchFolder()
    assert first.path is not None
    assert everyone == first.path.parent
    first.remove()
    assert not everyone.exists()
    for name in (f"{os.getppid()}.1", "4194305.5", "words"):
        (everyone / name).mkdir(parents=True, exist_ok=True)
    alive = everyone / f"{os.getppid()}.{start_ticks(os.getppid())}"
    alive.mkdir()
    LaunchFolder().remove()
    assert [alive.name] == [path.name for path in everyone.iterdir()]
    alive.rmdir()


def test_a_launcher_that_cannot_be_seen_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in another container with the same /dev/shm, whose process ids mean nothing here."""
    monkeypatch.setattr("ammeter.launcher.launch_folder.SHARED_MEMORY", tmp_path)
    body = (
        "import sys; from pathlib import Path; from ammeter.launcher import launch_folder\n"
        "launch_folder.SHARED_MEMORY, launch_folder.start_ticks = Path(sys.argv[1]), lambda process: '1'\n"
        "folder = launch_folder.LaunchFolder(); print(folder.path, flush=True); sys.stdin.read(); folder.remove()\n"
    )
    words = [sys.executable, "-c", body, str(tmp_path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        LaunchFolder().remove()
        assert (folder / "notes").exists()
        other.stdin.close()
        other.wait(30)
    assert not folder.exists()


def test_where_shared_memory_is_not_ours_there_are_notes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ammeter.launcher.launch_folder.SHARED_MEMORY", tmp_path / "file")
    (tmp_path / "file").write_text("")
    notes = LaunchFolder()
    assert notes.path is not None
    (notes.path / "notes").write_text("12\tbegan\tpython x.py\nhalf a li\n12\tarmed\t2.6.0\n")
    assert [Note(12, "began", "python x.py"), Note(12, "armed", "2.6.0")] == notes.notes()
    notes.remove()
    assert [] == notes.notes()
