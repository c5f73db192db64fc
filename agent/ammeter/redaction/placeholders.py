"""Replacements of secrets, and values that are no secrets."""

from __future__ import annotations

import re

from ammeter.redaction.lazy_pattern import pattern

GONE = "(not sent)"
"""Replacement of a secret."""

BEYOND = "(not sent: too deep or too long)"
"""Replacement of the part of a config that exceeds its limits."""

GAP = "\ue0f1"
"""Stands for GONE during the search: a single character, which no pattern can split into two words."""

NOTHING = frozenset(("", "None", "none", "null", "nil", "True", "False", "true", "false", "undefined", "...", "***"))
"""Values that are no secrets, whatever their name."""

_NUMBER = pattern(r"\s*[+-]?[0-9][0-9_,.]{0,15}(?:e[+-]?[0-9]{1,3})?\s?[kmgtb]?\s*", re.IGNORECASE)


def is_number(text: str) -> bool:
    """Returns whether a text is a number, such as 4096, 1e6, '300B' or '1.5 T'."""
    return bool(_NUMBER.fullmatch(text))
