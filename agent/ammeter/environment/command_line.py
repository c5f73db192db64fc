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
    settings: dict[str, Any] = {}
    positional = 0
    index = 0
    while index < len(words) and len(settings) < MAX_SETTINGS:
        word = words[index]
        index += 1
        if word == "--":
            continue
        if _is_option(word):
            name, equals, text = word.lstrip("-").partition("=")
            if equals:
                _add(settings, name, parse_value(text))
                continue
            values: list[Any] = []
            while index < len(words) and _is_value(words[index], values):
                values.append(parse_value(words[index]))
                index += 1
            _add(settings, name, True if not values else values[0] if len(values) == 1 else values)
        elif hydra := _HYDRA.match(word):
            _add(settings, hydra[2], parse_value(hydra[3]))
        else:
            positional += 1
            settings[f"{POSITIONAL}.{positional}"] = parse_value(word)
    return settings


def parse_value(text: str) -> Any:
    """Returns a number, True, False or None if the text is one; else the text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if not _NUMBER.match(text):
        return text
    return float(text) if any(sign in text for sign in ".eE") else int(text)


def _is_option(word: str) -> bool:
    return word.startswith("-") and word.strip("-") != "" and not _NUMBER.match(word)


def _is_value(word: str, values: Sequence[Any]) -> bool:
    """Returns whether a word is a value of the preceding option.

    True for the first word that is no option, and for further numbers.
    """
    if _is_option(word) or word == "--" or (not values and _HYDRA.match(word) and not word.startswith(("{", "["))):
        return False
    all_numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return not values or (all_numbers and _NUMBER.match(word) is not None)


def _add(settings: dict[str, Any], name: str, value: Any) -> None:
    if name in settings:
        before = settings[name] if isinstance(settings[name], list) else [settings[name]]
        value = [*before, value]
    settings[name] = value
