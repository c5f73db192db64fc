"""Query parameters with the same names in all resources: ranks, step range, time range."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query

Ranks = Annotated[
    str | None,
    Query(alias="rank", pattern=r"^\d{1,9}(,\d{1,9})*$", description="One, or several between commas: `0,3`."),
]
First = Annotated[int | None, Query(alias="from", ge=0, lt=2**63, description="First step.")]
Last = Annotated[int | None, Query(alias="to", ge=0, lt=2**63, description="Last step.")]
Since = Annotated[datetime | None, Query(description="From then on: `2026-05-04T12:00:00Z`, or seconds since 1970.")]
Until = Annotated[datetime | None, Query(description="Until then, that millisecond included.")]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = 2**63 - 1


def ranks_of(text: str | None) -> list[int] | None:
    """The distinct ranks in ascending order; None for all ranks."""
    return None if text is None else sorted({int(rank) for rank in text.split(",")})


def begin_of(since: datetime | None) -> int | None:
    """Nanoseconds since the epoch."""
    return None if since is None else _nanoseconds(since)


def end_of(until: datetime | None) -> int | None:
    """The last nanosecond of the millisecond, because responses have times in milliseconds."""
    if until is None:
        return None
    begin = _nanoseconds(until)
    return min(begin - begin % 10**6 + 999_999, LATEST)


def _nanoseconds(time: datetime) -> int:
    """Nanoseconds since the epoch, clamped to 64 bits. A time without a zone is UTC."""
    aware = time if time.tzinfo else time.replace(tzinfo=UTC)
    return max(-LATEST, min((aware - EPOCH) // timedelta(microseconds=1) * 1000, LATEST))
