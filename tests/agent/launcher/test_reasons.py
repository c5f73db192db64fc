"""If nothing was watched, the last line names the reason closest to training."""

from __future__ import annotations

from ammeter.launcher import SITE, supervisor
from ammeter.launcher.launch_folder import Note
from ammeter.launcher.process_scanner import UnwatchedPython
from ammeter.launcher.reasons import explain


def _unwatched(*words: str, torch: bool = True, own: bool = False, path: str = str(SITE)) -> UnwatchedPython:
    return UnwatchedPython(7, words, frozenset({"AMMETER_LAUNCH"}), path, torch, own)


def test_what_came_nearest_to_training_is_said_first() -> None:
    began = [Note(1, "began", "python a.py"), Note(2, "began", "python b.py")]
    armed = [*began, Note(2, "torch", ""), Note(2, "armed", "2.6.0")]
    shut = _unwatched("python", "-I", "c.py")
    assert explain([], [*armed, Note(1, "refused", "no")], [shut], SITE, "")[0] == "no"
    assert "c.py" in explain([], armed, [shut], SITE, "")[0]
    assert (
        "b.py imported torch 2.6.0"
        in explain([], armed, [_unwatched("python", "-I", "c.py", torch=False)], SITE, "")[0]
    )
    assert ["python a.py never imported torch"] == explain([], began, [], SITE, "")


def test_a_python_that_is_part_of_a_program_is_told_as_that() -> None:
    (cause,) = explain([], [], [_unwatched("./train", own=True)], SITE, "")
    assert cause.startswith("./train (process 7) embeds its own Python")


def test_our_own_processes_are_no_reason() -> None:
    (cause,) = explain(
        [], [], [_unwatched("python", "-S", "-E", "-m", "ammeter.shipper.process", "/x", torch=False)], SITE, ""
    )
    assert cause.startswith("the command started no Python process")


def test_how_a_command_ended_is_said_in_words() -> None:
    assert ["", "ended with exit code 3", "was killed by SIGKILL"] == [
        supervisor.describe_end(status) for status in (0, 3 << 8, 9)
    ]
