"""A comparison of two groups as text, from its JSON form."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ammeter.verdicts.framework import wording


def lines_of(document: Mapping[str, Any]) -> Iterator[str]:
    """Yields the decision, its reasons, the notes, and the value of each run."""
    yield f"decision: {_DECISIONS[document['decision']]}"
    for reason in document["reasons"]:
        yield f"  {reason}"
    for note in document["notes"]:
        yield f"note: {note}"
    if document["low"] is None and document["metric"] is not None:
        yield f"values: {_measured(document)}"
    for name in ("a", "b"):
        group = document[name]
        yield f"{name.upper()}: {_summary(group)}"
        for run in group["runs"]:
            seed = "" if run["seed"] is None else f"  seed {run['seed']}"
            yield f"  {_number(run['value']):>12}  {run['name'] or run['id']}{seed}  {run['id'][:8]}"


_DECISIONS = {
    "better": "A is better than B",
    "worse": "A is worse than B",
    "not distinguishable": "A and B are not distinguishable",
    "too few runs": "too few runs",
    "not comparable": "not comparable",
}


def _measured(document: Mapping[str, Any]) -> str:
    """Says what the values of the runs are, where no interval says it."""
    first, last = document["first_step"], document["last_step"]
    return (
        f"{document['metric']} at step {last}"
        if first == last
        else f"mean {document['metric']} in steps {first} to {last}"
    )


def _summary(group: Mapping[str, Any]) -> str:
    count = f"{wording.count(len(group['runs']), 'run')}, {group['independent']} independent"
    if group["mean"] is None:
        return count
    return f"{count}, mean {_number(group['mean'])}, standard deviation {_number(group['deviation'])}"


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else "-" if value is None else str(value)
