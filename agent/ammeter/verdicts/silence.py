"""Names of silenced verdicts, from the command line, a setting or a run's tag.

A silenced verdict is still reached and displayed on request, but sends no notification.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ammeter.verdicts import BY_ID
from ammeter.wire.frames import SILENCE


def names(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the verdicts in texts with names separated by commas, without duplicates.

    Raises:
        ValueError: A verdict does not exist.
    """
    verdicts = dict.fromkeys(name.strip() for text in texts for name in text.split(",") if name.strip())
    for verdict in verdicts:
        if verdict not in BY_ID:
            close = difflib.get_close_matches(verdict, BY_ID, n=3, cutoff=0.5)
            remedy = f"did you mean {' or '.join(close)}?" if close else f"use some of {', '.join(BY_ID)}"
            raise ValueError(f"there is no verdict {verdict!r} to silence; {remedy}")
    return tuple(verdicts)


def of_tags(tags: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names in a run's tags. Names that this version does not know have no effect."""
    return frozenset(name.strip() for name in str(tags.get(SILENCE) or "").split(","))
