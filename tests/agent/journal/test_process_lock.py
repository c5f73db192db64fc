"""The lock shows whether a writer lives, and a dead writer's stream is ended once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from ammeter import journal
from ammeter.journal import Journal
from ammeter.wire.codec import encode
from ammeter.wire.frames import Bye
from tests.agent.journal.journals import contiguous, frames, recorded, row


def test_a_killed_writer_is_settled_once(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    assert journal.is_alive(folder)
    assert not journal.end_stream(folder, 9)
    process.send_signal(signal.SIGKILL)
    process.wait()
    _, last = journal.segments(folder)[-1]
    with open(last, "ab") as file:
        file.write(encode(row(50), journal.end_of(folder))[:33])
    assert not journal.is_alive(folder)
    assert journal.end_stream(folder, 9)
    assert not journal.end_stream(folder, 10)
    assert [*(row(step) for step in range(50)), Bye("lost", 49, 9)] == recorded(folder)
    assert journal.ended(folder)
    assert contiguous(folder)


def test_a_writer_that_said_goodbye_is_not_settled(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    assert process.stdin
    assert process.stdout
    process.stdin.write("bye\n")
    process.stdin.flush()
    assert "closed\n" == process.stdout.readline()
    assert not journal.is_alive(folder)
    assert not journal.end_stream(folder, 9)
    assert Bye("closed", 49, 7) == frames(folder)[-1]


def test_what_is_known_of_a_death_is_written_down(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    process.kill()
    process.wait()
    assert journal.end_stream(folder, 9, journal.Ending("killed by SIGKILL"))
    assert [Bye("lost", 49, 9, "killed by SIGKILL")] == recorded(folder)[50:]


def test_a_process_that_was_told_to_end_is_not_lost(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    (folder / journal.TERMINATED_FILE).write_text("Current thread:\n")
    process.terminate()
    process.wait()
    assert journal.end_stream(folder, 9, journal.Ending("killed by SIGTERM"))
    assert [Bye("signal", 49, 9, "SIGTERM")] == recorded(folder)[50:]


def test_who_was_seen_to_end_by_sigterm_is_not_lost_either(tmp_path: Path, process: subprocess.Popen[str]) -> None:
    folder = tmp_path / "stream"
    process.terminate()
    process.wait()
    assert journal.end_stream(folder, 9, journal.Ending("killed by SIGTERM"))
    assert [Bye("signal", 49, 9, "SIGTERM")] == recorded(folder)[50:]


def test_a_witness_is_there_as_long_as_its_process_is(tmp_path: Path) -> None:
    assert not journal.has_exit_watcher(tmp_path)
    held = journal.lock(journal.exit_watcher_path(tmp_path))
    assert held is not None
    assert journal.has_exit_watcher(tmp_path)
    journal.unlock(held)
    assert not journal.has_exit_watcher(tmp_path)


def test_the_bye_of_a_settled_stream_stands_behind_what_was_acknowledged(
    tmp_path: Path, process: subprocess.Popen[str]
) -> None:
    """A host that went down can lose a tail that the collector has."""
    folder = tmp_path / "stream"
    process.kill()
    process.wait()
    end = journal.end_of(folder)
    journal.acknowledge(folder, end + 500)
    assert journal.end_stream(folder, 9)
    assert [Bye("lost", 49, 9)] == frames(folder, end + 500)
    assert not journal.end_stream(folder, 10)
    assert contiguous(folder)


def test_a_stream_whose_segments_are_all_gone_has_nothing_to_settle(
    tmp_path: Path, process: subprocess.Popen[str]
) -> None:
    process.kill()
    process.wait()
    for _, path in journal.segments(tmp_path / "stream"):
        path.unlink()
    assert not journal.end_stream(tmp_path / "stream", 9)


def test_a_live_writer_in_this_process_keeps_its_lock_when_asked(writer: Journal) -> None:
    assert journal.is_alive(writer.folder)
    assert not journal.end_stream(writer.folder, 1)
    ask = (
        "import sys; from pathlib import Path; from ammeter import journal; print(journal.is_alive(Path(sys.argv[1])))"
    )
    words = [sys.executable, "-c", ask, str(writer.folder)]
    assert "True\n" == subprocess.run(words, capture_output=True, text=True, check=True).stdout
    writer.close()
    assert "False\n" == subprocess.run(words, capture_output=True, text=True, check=True).stdout
