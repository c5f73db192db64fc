"""Checks verdict ids given to guards, and which can be evaluated in the training process."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ammeter.verdicts import BASELINE_VERDICTS, BY_ID, STREAM_VERDICTS

ELSEWHERE = {
    "run-lost": "the process is gone by then",
    "run-stalled": "no step ends while it holds, and guards act between two steps",
    "ranks-disagree": "it takes the rows of all ranks, which the collector and `ammeter report` have",
}
"""Verdicts that no guard can act on, and why."""

REACHED = tuple(verdict.id for verdict in STREAM_VERDICTS if verdict.id not in ELSEWHERE)
"""Verdicts that the rows and events of one process decide."""

COMPARED = tuple(verdict.id for verdict in BASELINE_VERDICTS if verdict.id not in REACHED)
"""Verdicts that also need the journal of a baseline."""


def known(ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids unchanged.

    Raises ValueError for an id that no verdict has or that no guard can act on, TypeError for a string instead of a
    list.
    """
    if isinstance(ids, str):
        raise TypeError(f"verdicts is {ids!r}; use a list, such as [{ids!r}]")
    for verdict_id in ids:
        if verdict_id not in BY_ID:
            near = difflib.get_close_matches(str(verdict_id), BY_ID, n=1)
            hint = f"did you mean {near[0]!r}?" if near else "docs/verdicts.md lists them"
            raise ValueError(f"there is no verdict {verdict_id!r}; {hint}")
        if verdict_id in ELSEWHERE:
            usable = ", ".join((*REACHED, *COMPARED))
            raise ValueError(
                f"no guard can act on {verdict_id!r}: {ELSEWHERE[verdict_id]}. Leave it out, or use of these: {usable}"
            )
    return tuple(ids)


def needs_baseline(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(verdict_id for verdict_id in ids if verdict_id in COMPARED)
