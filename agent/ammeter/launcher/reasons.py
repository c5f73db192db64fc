"""Explains why nothing was watched, from notes of Python processes and unwatched processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ammeter.launcher.command import python_options
from ammeter.launcher.launch_folder import Note
from ammeter.launcher.process_scanner import UnwatchedPython
from ammeter.wire import printable

OLDEST_TORCH = (2, 4)

MAX_REASONS = 2
"""Several Python processes may have a reason each."""

MAX_COMMAND_CHARS = 100

_BY_OPTION = {
    "S": "python -S skips the module site, which loads Ammeter",
    "I": "python -I ignores PYTHONPATH",
    "E": "python -E ignores PYTHONPATH",
}
_NOT_INSTALLED = "ammeter is not installed in that Python; install it there, or call ammeter.watch()"


def explain(
    command: Sequence[str], notes: Sequence[Note], unwatched: Sequence[UnwatchedPython], site: Path, status: str
) -> list[str]:
    """Returns at most two reasons, those closest to training first.

    site: the folder that was put on PYTHONPATH. status: how the command ended, such as 'ended with exit code 1', or ''
    if the status shows no failure.
    """
    unwatched = [python for python in unwatched if not _is_shipper(" ".join(python.command))]
    reasons = [note.text for note in notes if note.event in ("refused", "failed")]
    reasons += _own_call(notes)
    reasons += [explain_unwatched(python, site) for python in unwatched if python.has_torch]
    reasons = reasons or _without_step(notes, status)
    reasons = reasons or [explain_unwatched(python, site) for python in unwatched]
    reasons = reasons or [*_without_optimizer(notes, status), *_without_torch(notes)]
    reasons = reasons or [explain_unwatched(python, site) for python in _unobserved(command)]
    default = "the command started no Python process that Ammeter could find"
    return list(dict.fromkeys(reasons))[:MAX_REASONS] or [default]


def explain_unwatched(python: UnwatchedPython, site: Path) -> str:
    """Explains why a Python process has not loaded Ammeter."""
    program = _shortened(shlex.join(python.command)) + (f" (process {python.process})" if python.process else "")
    options = "".join(python_options(python.command))
    option = next((letter for letter in "SIE" if letter in options), None)
    if option:
        remedy = "; run it without -S" if option == "S" else f", and {_NOT_INSTALLED}"
        return f"{program}: {_BY_OPTION[option]}{remedy}"
    if python.embedded:
        return f"{program} embeds its own Python, which ignores PYTHONPATH; call ammeter.watch() in the program"
    if "AMMETER_LAUNCH" not in python.variables:
        return f"{program} was started with a cleared environment, so without PYTHONPATH, and {_NOT_INSTALLED}"
    if str(site) not in python.python_path.split(":"):
        path = python.python_path or "none"
        return f"{program} was started with another PYTHONPATH ({path}), and {_NOT_INSTALLED}"
    return f"{program} loads another sitecustomize.py, which precedes Ammeter's on PYTHONPATH, and {_NOT_INSTALLED}"


def _unobserved(command: Sequence[str]) -> Iterator[UnwatchedPython]:
    """Yields the typed command as a Python process that excluded Ammeter and ended unobserved."""
    if list(python_options(command)):
        yield UnwatchedPython(0, tuple(command), frozenset(), "", has_torch=False, embedded=False)


def _own_call(notes: Sequence[Note]) -> Iterator[str]:
    if any(note.event == "own" for note in notes):
        yield "the program calls ammeter.watch() itself; its journal is in the folder that this call names"


def _without_step(notes: Sequence[Note], status: str) -> list[str]:
    """Returns a reason for each process in which Ammeter waited for an optimizer's step."""
    return [
        f"{_command_of(note.process, notes)} imported torch {note.text}, but no optimizer of torch made a step"
        f"{_before_end(status)}"
        for note in notes
        if note.event == "armed"
    ]


def _without_optimizer(notes: Sequence[Note], status: str) -> Iterator[str]:
    """Yields reasons for processes that imported torch and made no optimizer."""
    finished = {note.process for note in notes if note.event in ("ended", "missing")}
    no_optimizer = f"but made no optimizer of torch{_before_end(status)}"
    for note in notes:
        program = _command_of(note.process, notes)
        if note.event == "missing":
            yield f"torch is not installed in {note.text}, and {program} imports it"
        elif note.event == "ended" and _version_numbers(note.text) < OLDEST_TORCH:
            oldest = ".".join(map(str, OLDEST_TORCH))
            yield f"{program} uses torch {note.text}; use torch {oldest} or newer"
        elif note.event == "ended":
            yield f"{program} imported torch {note.text}, {no_optimizer}"
        elif note.event == "torch" and note.process not in finished:
            yield f"{program} imported torch, {no_optimizer}"


def _without_torch(notes: Sequence[Note]) -> Iterator[str]:
    """Yields a reason for processes that never imported torch.

    The command is known, so the first of them is sufficient.
    """
    if any(note.event == "torch" for note in notes):
        return
    commands = [note.text for note in notes if note.event == "began" and not _is_shipper(note.text)]
    for command in commands[:1]:
        yield f"{_shortened(command)} never imported torch"


def _command_of(process: int, notes: Sequence[Note]) -> str:
    """Returns the command line of a process, as its first note records it."""
    command = next((note.text for note in notes if note.process == process and note.event == "began"), "")
    return _shortened(command) or f"process {process}"


def _before_end(status: str) -> str:
    return f" before the command {status}" if status else ""


def _shortened(command: str) -> str:
    return printable.shortened(command, MAX_COMMAND_CHARS)


def _is_shipper(command: str) -> bool:
    """Returns whether this is the shipper, or the intermediate process that detaches it."""
    return "ammeter.shipper.process" in command


def _version_numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int("".join(char for char in part if char.isdigit()) or 0) for part in parts)
