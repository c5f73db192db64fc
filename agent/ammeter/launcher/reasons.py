"""Explains why nothing was watched, from notes of Python processes and observed processes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ammeter.launcher.command import python_options
from ammeter.launcher.notes import Note
from ammeter.launcher.process_observer import Closed
from ammeter.wire import printable

OLDEST_TORCH = (2, 4)

MOST = 2
"""Limit of reasons; several Python processes may have one each."""

LONGEST = 100

_BY_OPTION = {
    "S": "python -S does not import site, and that is where Ammeter comes in",
    "I": "python -I does not look at PYTHONPATH",
    "E": "python -E does not look at PYTHONPATH",
}
_NOT_IN_IT = "its Python has no ammeter installed that starts by itself; install ammeter there, or call ammeter.watch()"


def why(command: Sequence[str], notes: Sequence[Note], closed: Sequence[Closed], site: Path, status: str) -> list[str]:
    """Returns at most two reasons, those closest to training first.

    site: the folder that was put on PYTHONPATH. status: how the command ended, such as 'ended with exit code 1', or ''
    if the status shows no failure.
    """
    closed = [each for each in closed if not _is_ours(" ".join(each.words))]
    found = [each.text for each in notes if each.event in ("refused", "failed")]
    found += _own(notes)
    found += [shut_out(each, site) for each in closed if each.torch]
    found = found or _armed(notes, status)
    found = found or [shut_out(each, site) for each in closed]
    found = found or [*_with_torch(notes, status), *_without_torch(notes)]
    found = found or [shut_out(each, site) for each in _as_typed(command)]
    return list(dict.fromkeys(found))[:MOST] or ["no Python was started by the command, as far as could be seen"]


def _as_typed(command: Sequence[str]) -> Iterator[Closed]:
    """Yields the typed command as a Python process that excluded Ammeter and ended unobserved."""
    if list(python_options(command)):
        yield Closed(0, tuple(command), frozenset(), "", False, False)


def shut_out(python: Closed, site: Path) -> str:
    """Explains why a Python process has not loaded Ammeter."""
    who = _called(shlex.join(python.words)) + (f" (process {python.process})" if python.process else "")
    options = "".join(python_options(python.words))
    option = next((letter for letter in "SIE" if letter in options), None)
    if option:
        return f"{who}: {_BY_OPTION[option]}{'; leave it out' if option == 'S' else f', and {_NOT_IN_IT}'}"
    if python.own:
        return f"{who} carries a Python of its own, which does not look at PYTHONPATH; call ammeter.watch() in it"
    if "AMMETER_LAUNCH" not in python.environment:
        return f"{who} was started with its environment cleared, so without PYTHONPATH, and {_NOT_IN_IT}"
    if str(site) not in python.path.split(":"):
        return f"{who} was started with another PYTHONPATH ({python.path or 'none'}), and {_NOT_IN_IT}"
    return f"{who} reads another sitecustomize.py, which stands before Ammeter's on PYTHONPATH, and {_NOT_IN_IT}"


def _own(notes: Sequence[Note]) -> Iterator[str]:
    if any(each.event == "own" for each in notes):
        yield "the program calls ammeter.watch() itself, and its journal lies where that says"


def _armed(notes: Sequence[Note], status: str) -> list[str]:
    found = [each for each in notes if each.event == "armed"]
    behind = f" before the command {status}" if status else ""
    return [
        f"{_words_of(each.process, notes)} imported torch {each.text}, but no optimizer of torch made a step{behind}"
        for each in found
    ]


def _with_torch(notes: Sequence[Note], status: str) -> Iterator[str]:
    behind = f" before the command {status}" if status else ""
    for each in notes:
        who = _words_of(each.process, notes)
        if each.event == "missing":
            yield f"torch is not installed in {each.text}, where {who} asked for it"
        elif each.event == "ended" and _numbers(each.text) < OLDEST_TORCH:
            yield f"{who} has torch {each.text}, and ammeter can watch 2.4 and newer"
        elif each.event == "ended":
            yield f"{who} imported torch {each.text}, but made no optimizer of torch{behind}"
        elif each.event == "torch" and not any(
            other.process == each.process and other.event in ("ended", "missing") for other in notes
        ):
            yield f"{who} imported torch, but made no optimizer of torch{behind}"


def _without_torch(notes: Sequence[Note]) -> Iterator[str]:
    """Yields a reason for processes that never imported torch.

    The command is known, so the first of them is sufficient.
    """
    asked = {each.process for each in notes if each.event == "torch"}
    plain = [each for each in notes if each.event == "began" and each.process not in asked and not _is_ours(each.text)]
    for each in plain[:1] if not asked else ():
        yield f"{_called(each.text)} never imported torch"


def _words_of(process: int, notes: Sequence[Note]) -> str:
    """Returns the command line of a process, as its first note records it."""
    said = next((each.text for each in notes if each.process == process and each.event == "began"), "")
    return _called(said) or f"process {process}"


def _called(words: str) -> str:
    return printable.shortened(words, LONGEST)


def _is_ours(words: str) -> bool:
    """Returns whether this is the shipper, or the intermediate process that detaches it."""
    return "ammeter.shipper.process" in words


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int("".join(each for each in part if each.isdigit()) or 0) for part in parts)
