"""Which verdicts a guard is given by name."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ammeter.verdicts import BY_ID


def known(ids: Sequence[str]) -> tuple[str, ...]:
    """The ids as they are. Raises ValueError for one that no verdict has, TypeError for a single text."""
    if isinstance(ids, str):
        raise TypeError(f"verdicts is {ids!r}; use a list, such as [{ids!r}]")
    for each in ids:
        if each not in BY_ID:
            near = difflib.get_close_matches(str(each), BY_ID, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/verdicts.md lists them"
            raise ValueError(f"there is no verdict {each!r}; {hint}")
    return tuple(ids)
