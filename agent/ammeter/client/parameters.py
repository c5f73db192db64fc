"""Values of the client's methods as parameters of the API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import quote


def joined(given: str | int | Sequence[str] | Sequence[int]) -> str | None:
    return ",".join(map(str, [given] if isinstance(given, str | int) else given)) or None


def column_names(names: str | Sequence[str]) -> str | None:
    """Joins names of columns, which may contain commas."""
    return ",".join(quote(name, safe="") for name in ([names] if isinstance(names, str) else names)) or None


def instant(given: datetime | None) -> str | None:
    """A time without a zone is that of this machine."""
    return None if given is None else given.astimezone(UTC).isoformat().replace("+00:00", "Z")
