"""The result of `ammeter checkpoint`, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from ammeter.inspection.access import NOT_KNOWN, Access
from ammeter.inspection.inspected import Inspected
from ammeter.preparation.contents import Contents

MAX_NAMES = 5
"""Names of tensors that are not finite which are printed; JSON has all."""

_PARTS = {
    "optimizer": "optimizer",
    "scaler": "scaler",
    "scheduler": "scheduler",
    "rng": "random state",
    "progress": "step or epoch",
}


def document(path: str, found: Inspected, access: Access) -> dict[str, Any]:
    """The result as JSON. `contents` is as in the event checkpoint.saved, null if it could not be read."""
    return {
        "path": path,
        "format": found.format,
        "bytes": found.bytes,
        "complete": None if found.unread else not found.broken,
        "finite": None if found.broken or found.unread else not found.nonfinite,
        "reason": found.reason,
        "tensors": found.tensors,
        "nonfinite": found.nonfinite,
        "contents": found.contents.plain() if found.contents else None,
        **asdict(access),
    }


def lines(path: str, found: Inspected, access: Access) -> Iterator[str]:
    yield path
    yield _row("format", f"{found.format}, {found.bytes:,} bytes")
    yield _row("complete", _complete(found))
    if not found.broken and not found.unread:
        yield _row("finite", f"no: {_names(found)}" if found.nonfinite else f"yes, {found.tensors} tensors")
    if found.contents is not None:
        yield _row("holds", ", ".join(_held(found.contents)) or "no state of a training")
        absent = [word for part, word in _PARTS.items() if not getattr(found.contents, part)]
        if absent:
            yield _row("not found", ", ".join(absent))
    yield _row("access", _access(access))
    yield _row("encryption", access.encryption)


def _row(name: str, text: str) -> str:
    return f"  {name:<11} {text}"


def _complete(found: Inspected) -> str:
    return f"{NOT_KNOWN}: {found.unread}" if found.unread else f"no: {found.broken}" if found.broken else "yes"


def _names(found: Inspected) -> str:
    more = len(found.nonfinite) - MAX_NAMES
    shown = ", ".join(found.nonfinite[:MAX_NAMES])
    return f"{len(found.nonfinite)} of {found.tensors} tensors: {shown}{f' and {more} more' if more > 0 else ''}"


def _held(contents: Contents) -> Iterator[str]:
    for dtype, elements in sorted(contents.weights.items()):
        yield f"{elements:,} numbers of weights in {dtype}"
    yield from (word for part, word in _PARTS.items() if getattr(contents, part))
    if not contents.complete:
        yield "and more, beyond the limits of the search"


def _access(access: Access) -> str:
    if access.world_readable is None:
        return f"{NOT_KNOWN}; the rules of the store's account apply"
    able = f"; {access.by} can {' and '.join(access.exposed)} it" if access.exposed else ""
    return f"mode {access.mode}, which {'lets' if access.world_readable else 'does not let'} everybody read it{able}"
