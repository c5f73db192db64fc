"""Removes secrets from a program's data: config, tags, names, errors, events, command line.

This package alone decides what is withheld. A value is withheld because of its key (keys.py), because of its form
(patterns.py), or because it was withheld before: a Redactor removes such values from all later text.
"""

from ammeter.redaction.config_values import MAX_TEXT_CHARS
from ammeter.redaction.placeholders import BEYOND, GONE
from ammeter.redaction.redactor import Redactor

__all__ = ["BEYOND", "GONE", "MAX_TEXT_CHARS", "Redactor", "process_redactor", "text"]

process_redactor = Redactor(remembers=True)
"""The redactor of this process, for all its output."""


def text(foreign: str, max_chars: int) -> str:
    """Returns foreign text that can be written anywhere: without secrets, truncated, valid UTF-8."""
    return process_redactor.words(foreign, max_chars)
