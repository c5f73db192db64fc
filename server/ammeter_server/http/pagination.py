"""Keyset pagination of lists.

The token contains the key after which the next page begins, so that no item is missing or repeated.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import unquote

import msgspec
from fastapi import Query
from starlette.requests import HTTPConnection

from ammeter_server.http.problems import Problem

PageSize = Annotated[int, Query(ge=1, le=1000, description="Items of one page at most.")]
PageToken = Annotated[str | None, Query(description="`next_page_token` of the page before; without it the first page.")]


def token(*key: str | int) -> str:
    """The token of the next page, opaque to the client.

    It encodes the key of this page's last item.
    """
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).decode().rstrip("=")


def key_of(given: str | None, kinds: Sequence[type]) -> tuple[str | int, ...] | None:
    """Decodes the key of a token; None without a token.

    Raises:
        Problem: 422 if this server did not create the token.
    """
    if given is None:
        return None
    try:
        key = msgspec.json.decode(base64.urlsafe_b64decode(given + "=" * (-len(given) % 4)))
    except (ValueError, msgspec.DecodeError, RecursionError):
        key = None
    if not isinstance(key, list) or [type(part) for part in key] != list(kinds) or not all(map(_storable, key)):
        raise unknown_token(given)
    return tuple(key)


def unknown_token(given: str) -> Problem:
    return Problem(
        422, f"page_token is {given[:80]!r}, which this list did not return; omit it to begin with the first page"
    )


async def refuse_nul(connection: HTTPConnection) -> None:
    """Refuses URLs with a NUL character, which no name contains and PostgreSQL does not accept."""
    if "\x00" in connection.url.path or "\x00" in unquote(connection.url.query):
        raise Problem(422, "the URL contains %00, which no name has; remove it")


def _storable(part: str | int) -> bool:
    return "\x00" not in part if isinstance(part, str) else -(2**63) <= part < 2**63
