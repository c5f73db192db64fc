"""Verdicts that somebody does not want to hear of: by their names, from a command line, a setting or a run's tag.

A silenced verdict is still reached, and whoever asks is told that it was; nobody is woken for it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ammeter.verdicts import BY_ID

TAG = "silence"
"""The tag of a run that names them, between commas."""


def names(said: Iterable[str]) -> tuple[str, ...]:
    """The verdicts that texts name, each with commas between names, once each. Raises ValueError for an unknown one."""
    found = dict.fromkeys(each.strip() for text in said for each in text.split(",") if each.strip())
    for each in found:
        if each not in BY_ID:
            close = difflib.get_close_matches(each, BY_ID, n=3, cutoff=0.5)
            remedy = f"did you mean {' or '.join(close)}?" if close else f"use some of {', '.join(BY_ID)}"
            raise ValueError(f"there is no verdict {each!r} to silence; {remedy}")
    return tuple(found)


def of_tags(tags: Mapping[str, Any]) -> frozenset[str]:
    """Those that a run's tags name. Names that this version does not know mean nothing to it."""
    return frozenset(each.strip() for each in str(tags.get(TAG) or "").split(","))
