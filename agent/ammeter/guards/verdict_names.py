"""Checks verdict ids given to guards, and which can be evaluated in the training process."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from ammeter.verdicts import BASELINE_VERDICTS, BY_ID, STREAM_VERDICTS

UNUSABLE = {
    "run-lost": "the process is gone by then",
    "run-stalled": "no step ends while it is open, and guards act between two steps",
    "ranks-disagree": "it needs the rows of all ranks, which the collector and `ammeter report` have",
    "half-reduction": "it needs the rows of all ranks, which the collector and `ammeter report` have",
    "broken-in-reduction": "it compares what all ranks have read, which the collector and `ammeter report` have",
}
"""Verdicts that no guard can act on, with the reason."""

USABLE = tuple(verdict.id for verdict in STREAM_VERDICTS if verdict.id not in UNUSABLE)
"""Verdicts that the rows and events of one process decide."""

USABLE_WITH_BASELINE = tuple(verdict.id for verdict in BASELINE_VERDICTS if verdict.id not in USABLE)
"""Verdicts that also need the journal of a baseline."""


def known(ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids unchanged.

    Raises ValueError for an id that no verdict has or that no guard can act on, TypeError for a string instead of a
    list.
    """
    if isinstance(ids, str):
        raise TypeError(f"verdicts is {ids!r}; use a list, such as [{ids!r}]")
    for verdict_id in ids:
        _check(verdict_id)
    return tuple(ids)


def _check(verdict_id: str) -> None:
    if verdict_id not in BY_ID:
        similar = difflib.get_close_matches(str(verdict_id), BY_ID, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else "docs/verdicts.md lists them"
        raise ValueError(f"there is no verdict {verdict_id!r}; {hint}")
    if verdict_id in UNUSABLE:
        usable = ", ".join((*USABLE, *USABLE_WITH_BASELINE))
        raise ValueError(
            f"no guard can act on {verdict_id!r}: {UNUSABLE[verdict_id]}. Leave it out, or use of these: {usable}"
        )


def needs_baseline(ids: Sequence[str]) -> tuple[str, ...]:
    return tuple(verdict_id for verdict_id in ids if verdict_id in USABLE_WITH_BASELINE)
