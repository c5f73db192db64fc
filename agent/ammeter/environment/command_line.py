"""Parses a script's command line into settings, for runs without a config."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_NUMBER = re.compile(r"[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?$")
_HYDRA = re.compile(r"(\+\+?|~)?([A-Za-z_][\w.@/-]*)=(.*)$", re.DOTALL)
_WORDS = {"true": True, "false": False, "none": None, "null": None}

POSITIONAL = "argument"
"""Prefix of words that belong to no option: argument.1, argument.2."""

MAX_SETTINGS = 500
"""Maximum settings of one command line; a larger number means file names from a shell's *."""


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Returns setting -> value of `--lr 3e-4`, `--lr=3e-4`, `-x 3`, `--amp`, `model.width=64`.

    An option followed by another option, or by nothing, is a flag: True. A repeated option, or one followed by several
    numbers, has a list. Numbers, true, false and none are converted; the rest is text.
    """
    found: dict[str, Any] = {}
    positional = 0
    at = 0
    while at < len(words) and len(found) < MAX_SETTINGS:
        word = words[at]
        at += 1
        if word == "--":
            continue
        if _is_option(word):
            name, equals, said = word.lstrip("-").partition("=")
            if equals:
                _add(found, name, value_of(said))
                continue
            values: list[Any] = []
            while at < len(words) and _belongs(words[at], values):
                values.append(value_of(words[at]))
                at += 1
            _add(found, name, True if not values else values[0] if len(values) == 1 else values)
        elif hydra := _HYDRA.match(word):
            _add(found, hydra[2], value_of(hydra[3]))
        else:
            positional += 1
            found[f"{POSITIONAL}.{positional}"] = value_of(word)
    return found


def value_of(said: str) -> Any:
    """Returns a number, True, False or None if the text is one; else the text."""
    if said.lower() in _WORDS:
        return _WORDS[said.lower()]
    if not _NUMBER.match(said):
        return said
    return float(said) if any(sign in said for sign in ".eE") else int(said)


def _is_option(word: str) -> bool:
    return word.startswith("-") and word.strip("-") != "" and not _NUMBER.match(word)


def _belongs(word: str, values: Sequence[Any]) -> bool:
    """Whether a word is a value of the preceding option.

    True for the first word that is no option, and for further numbers.
    """
    if _is_option(word) or word == "--" or (not values and _HYDRA.match(word) and not word.startswith(("{", "["))):
        return False
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    return not values or (numbers and _NUMBER.match(word) is not None)


def _add(found: dict[str, Any], name: str, value: Any) -> None:
    if name in found:
        before = found[name] if isinstance(found[name], list) else [found[name]]
        value = [*before, value]
    found[name] = value
