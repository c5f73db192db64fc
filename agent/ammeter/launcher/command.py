"""Analyses a command line: how to start it, and Python options that exclude Ammeter."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_PYTHON = re.compile(r"python(\d+(\.\d+)?)?$")

_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")


def runnable(command: Sequence[str]) -> list[str]:
    """Returns the words to start; this Python runs a script that is not executable."""
    first = command[0] if command else ""
    if first.endswith(".py") and Path(first).is_file() and not os.access(first, os.X_OK):
        return [sys.executable, *command]
    return list(command)


def value_of(command: Sequence[str], *names: str) -> str | None:
    """Returns the value of an option of the command, as '--name value' or '--name=value'."""
    for word, next_word in zip(command, [*command[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next_word
    return None


def python_options(command: Sequence[str]) -> Iterator[str]:
    """Yields the letters of Python's own options, which stand between it and the script."""
    if not command or not _PYTHON.match(os.path.basename(command[0])):
        return
    words = iter(command[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--") or word[:2] in ("-c", "-m"):
            return
        if word in _OPTIONS_WITH_VALUE:
            next(words, None)
        elif word[:2] not in ("-W", "-X") and not word.startswith("--"):
            yield word[1:]
